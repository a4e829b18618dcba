#include "holon/verify/report.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/verify/failure.h"

namespace holon::verify {

namespace {

std::vector<Recording> read_all(const std::vector<std::string>& paths) {
  std::vector<Recording> all;
  for (auto& p : paths) all.push_back(read_recording(p));
  return all;
}

std::vector<const Recording*> pointers(const std::vector<Recording>& all) {
  std::vector<const Recording*> list;
  for (auto& r : all) list.push_back(&r);
  return list;
}

}  // namespace

Report check_recordings(const std::string& reference, const std::vector<std::string>& perturbed,
                        const std::vector<std::string>& ranks) {
  if (ranks.empty()) fail_value("check: there is no recording of a rank to compare.");
  const Recording one = read_recording(reference);
  if (!one.ended)
    fail_runtime("check: the program does not come to its end on one rank, with which layouts are compared: {}",
                 one.error.empty() ? "it was stopped" : one.error);
  const auto rounded = read_all(perturbed), all = read_all(ranks);
  const Comparison c(one, pointers(rounded), pointers(all));
  Report report;
  report.compared = c.compared();
  if (const int outcome = c.first_wrong_outcome(); outcome >= 0) report.fault = fault_of(c, outcome);
  const bool failed = std::any_of(all.begin(), all.end(), [](auto& r) { return !r.ended; });
  // Where ranks part, values before it may be wrong because of that or the cause of it: the values are told.
  if (failed && !report.fault) report.fault = failure_of(pointers(all));
  if (c.compared() == 0) report.notes.emplace_back("the program has no tensors that could be compared");
  return report;
}

}  // namespace holon::verify
