// What a contract costs, and how two differ: for people.
#pragma once

#include <string>

#include "holon/contract/document.h"

namespace holon::contract {

// A line of the program each, by section: bytes and seconds of one step on the machine, most expensive first; and where
// the planner would take another path there, what that costs. Pre: the document was read on any device (AnyDevice) or
// here.
std::string cost_text(const Document& document, const Machine& machine);

// What b has more, less or other than a, with bytes, by line; "" if they name the same boxings.
std::string diff_text(const Document& a, const Document& b);

// `hosts` hosts with as many of the ranks each.
HostMap spread_over(int ranks, int hosts);

}  // namespace holon::contract
