// What ranks tell each other while they save and load.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holon/base/error.h"

namespace holon::checkpoint {

// Every rank's text, in their order. Collective over the world.
std::vector<std::string> share(const char* op, const std::string& mine);
// The text of one rank, on all. Collective over the world.
std::string share_from(const char* op, int root, const std::string& mine);

// A rank has said that its step failed. Any other error may come after all steps are done: on the way back a wait may
// fail, or be interrupted.
class StepFailed : public Error {
 public:
  using Error::Error;
};
// What the step read has been replaced by another job meanwhile: it is to be done again.
class Superseded : public Error {
 public:
  using Error::Error;
};

// Runs step, and returns when every rank of the world has run its own. Errors: if a rank's step failed, StepFailed on
// all ranks, which names that rank; if only by Superseded, that. Collective over the world.
void together(const char* op, const std::function<void()>& step);
// The same; returns what every rank's step has returned, in their order.
std::vector<std::string> results_together(const char* op, const std::function<std::string()>& step);

// Runs io, which reads or writes about so many bytes of files and does nothing else. Within a step of together() the
// other ranks hear every second that this one is at it: it does not count against the time-out of collectives, unless
// a single call takes ten times as long. io may run on another thread. Errors: what io throws; another rank's step has
// failed meanwhile.
void run_io(size_t bytes, const std::function<void()>& io);

// For a step that waits for another program, to be called several times a second: the other ranks hear that this one is
// at it, and the host language may end the wait (Ctrl-C). Errors: another rank's step has failed.
void heartbeat();

}  // namespace holon::checkpoint
