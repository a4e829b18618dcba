// Who this rank is, for programs. Holon's own sources ask the Context.
#pragma once

namespace holon {

// This rank's number, and how many ranks the launcher started.
int rank();
int world_size();

}  // namespace holon
