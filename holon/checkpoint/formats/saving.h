// What is in a folder besides what its index names: parts of saves that are under way, and of saves that have died.
#pragma once

#include <filesystem>
#include <string>

namespace holon::checkpoint {

// The file into which a rank writes its parts in the save of this id.
std::string part_file(const std::string& id, int rank, int world_size);

// A save into a folder that is under way. Until it is destroyed, or its process ends in whatever way, nobody sweeps
// away the parts of its id.
class SaveUnderWay {
 public:
  // Makes the folder if it is not there. Errors (RuntimeError): it cannot be made or written.
  explicit SaveUnderWay(const std::filesystem::path& folder);
  ~SaveUnderWay();
  SaveUnderWay(const SaveUnderWay&) = delete;
  SaveUnderWay& operator=(const SaveUnderWay&) = delete;
  const std::string& id() const { return id_; }

 private:
  std::string id_;
  std::filesystem::path file_;
  int fd_ = -1;
};

// Makes the folder for parts if it is not there. Errors (RuntimeError): it cannot be made.
void make_folder(const std::filesystem::path& folder);

// Removes the parts that neither the folder's index names nor a save under way has written, and what killed writers
// have left. Does nothing to the parts where the index cannot be read.
void sweep(const std::filesystem::path& folder);

}  // namespace holon::checkpoint
