#include "holon/checkpoint/formats/saving.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string_view>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/data/atomic_file.h"
#include "holon/data/file_lock.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPart = "part-", kEnding = ".safetensors", kUnderWay = ".holon-saving-";
constexpr int kMostTries = 10;

// The id in a name of part_file(); empty: it is none.
std::string id_of(std::string_view name) {
  if (!name.starts_with(kPart) || !name.ends_with(kEnding)) return "";
  name = name.substr(kPart.size(), name.size() - kPart.size() - kEnding.size());
  const size_t end = name.find('-'), of = name.find("-of-");
  if (end == name.npos || of == name.npos || of <= end) return "";
  auto number = [](std::string_view t) { return !t.empty() && t.find_first_not_of("0123456789") == t.npos; };
  const std::string_view id = name.substr(0, end);
  if (id.empty() || id.find_first_not_of("0123456789abcdef") != id.npos) return "";
  return number(name.substr(end + 1, of - end - 1)) && number(name.substr(of + 4)) ? std::string(id) : "";
}

}  // namespace

std::string part_file(const std::string& id, int rank, int world_size) {
  return fmt::format("{}{}-{}-of-{}{}", kPart, id, rank, world_size, kEnding);
}

void make_folder(const fs::path& folder) {
  std::error_code failed;
  const bool made = fs::create_directory(folder, failed);
  if (failed)
    fail_runtime("cannot create the folder {}: {}. Each rank writes its own file into it.", folder.string(),
                 failed.message());
  if (!made) return;
  // "run/" names the same folder as "run".
  data::sync_folder((folder.has_filename() ? folder : folder.parent_path()).parent_path());
}

SaveUnderWay::SaveUnderWay(const fs::path& folder) {
  std::random_device random;
  // Another job may remove the folder while it is empty.
  for (int tries = 0;; ++tries) {
    make_folder(folder);
    id_ = fmt::format("{:08x}", random());
    file_ = folder / (std::string(kUnderWay) + id_);
    fd_ = data::create_locked(file_);
    if (fd_ >= 0 || (errno != EEXIST && (errno != ENOENT || tries == kMostTries))) break;
  }
  if (fd_ < 0)
    fail_runtime("cannot write into the folder {}: {}. Check its permissions and the free space.", folder.string(),
                 std::strerror(errno));
}

SaveUnderWay::~SaveUnderWay() {
  ::unlink(file_.c_str());
  ::close(fd_);
}

void sweep(const fs::path& folder) {
  data::remove_dead_temporaries(folder);
  // What another save commits meanwhile is kept: its parts are looked at while it is known to be under way, or else its
  // index is there by the time that one is read.
  std::map<std::string, std::vector<std::string>> parts;  // by id
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kUnderWay)) parts[name.substr(kUnderWay.size())];
    if (std::string id = id_of(name); !id.empty()) parts[id].push_back(name);
  }
  std::erase_if(parts, [&](auto& entry) {
    return !data::remove_if_unlocked(folder / (std::string(kUnderWay) + entry.first));
  });
  const auto named = files_of_index(folder);
  if (!named) return;
  for (auto& [id, names] : parts)
    for (auto& name : names)
      if (!std::binary_search(named->begin(), named->end(), name)) fs::remove(folder / name, none);
}

}  // namespace holon::checkpoint
