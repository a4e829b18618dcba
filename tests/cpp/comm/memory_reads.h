#pragma once

#include <cstdint>

namespace holon::comm::test {

// Bytes that this process has read from others' memory by process_vm_readv, the system's one-sided get: the program,
// which exports its symbols, stands in for the C library's function.
int64_t bytes_read_from_others();

}  // namespace holon::comm::test
