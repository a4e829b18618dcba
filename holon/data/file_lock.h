// Locks by which one process sees that the writer of a file is still there: they end with it, however it ends.
#pragma once

#include <filesystem>

namespace holon::data {

// Makes a new file and locks it for as long as the descriptor that is returned is open. -1: it cannot be made; errno
// says why, EEXIST that it is there. Where the file system has no locks, the file is not locked.
int create_locked(const std::filesystem::path& path);

// Removes a file of create_locked() whose writer is gone. Returns whether the file is gone: not where the writer
// lives, or where the file system does not tell.
bool remove_if_unlocked(const std::filesystem::path& path);

}  // namespace holon::data
