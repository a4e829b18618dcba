// The files that the processes of a run write their traces to, and how they become one. A part begins with a line
// "holon-trace RUN PID PROCESSES HOST", has an event in JSON on each line after it, and ends with the line "end" if its
// process ended by itself.
#pragma once

#include <string>
#include <string_view>

namespace holon::tracing {

inline constexpr std::string_view kPartHead = "holon-trace", kPartEnd = "end";

// The first line of this process's part.
std::string part_head();
// Whether another process that lives writes to the part of this rank.
bool written_by_another(const std::string& part);

// As a string of JSON, with its quotes.
std::string json_text(std::string_view text);

}  // namespace holon::tracing
