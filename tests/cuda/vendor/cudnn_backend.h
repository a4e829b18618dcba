// cuDNN without a device: graphs are checked, and plans chosen and compiled, by the library that is found at run time,
// for a device that is described to it. Instead of running them the graph is computed here, by loops, from nothing but
// what the library was told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cudnn_backend {

// What the library is told that the device is, from the next plan on: compute capability 80 or 90.
inline int capability = 90;

// Whether it is found and is new enough to take a description of a device (9.8). Known after the first plan.
std::string why_not();

// Of the plan that was run last.
struct Run {
  std::vector<int64_t> numerical_notes;
  int64_t workspace_bytes = 0;
  bool workspace_given = false;
};
const Run& last_run();
int runs();
int plans();  // that were made

}  // namespace cudnn_backend
