// What is said where a program does not keep its contract.
#pragma once

#include <string>
#include <vector>

#include "holon/contract/document.h"

namespace holon::contract {

struct Deviation {
  std::string file;  // of the contract
  const Document* document = nullptr;
  const Section* section = nullptr;  // that the step belongs to, as far as it is known
  Site site;                         // of the program
  const Entry* asked = nullptr;      // what the program does; nullptr: less than the contract has
  const Entry* had = nullptr;        // the same in the contract
  int64_t times = 0;                 // so often in this step
};

// The line, what the contract has there, what was asked, why it costs more or less, what to do.
std::string text_of(const Deviation& d);

// What a call of `asked` costs compared with one of `had`, and why: "twice the bytes: 2 times the elements".
std::string why(const Entry& had, const Entry& asked);

// The entry of these that is most like e, or nullptr.
const Entry* most_like(const std::vector<Entry>& entries, const Entry& e);

// By the cost model, for the machine of the contract: an entry's path, once. Entries of ranks that this process has no
// devices for have a price as well.
double seconds(const Entry& e, const Machine& machine);

// Bytes that all ranks read in a step of the section, at most.
int64_t bytes_of(const Section& section);

}  // namespace holon::contract
