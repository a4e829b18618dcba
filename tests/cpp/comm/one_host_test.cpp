// What a program takes of its host and leaves there: cores, /dev/shm, memory, names.
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "holon/base/fmt.h"
#include "tests/cpp/comm/processes.h"
#include "tests/cpp/sanitizers.h"

namespace holon::comm::test {
namespace {

struct World {
  std::vector<std::unique_ptr<Process>> ranks;
  int port = free_port();

  World(int n, const std::string& mode) {
    for (int r = 0; r < n; ++r)
      ranks.push_back(
          std::make_unique<Process>(std::vector<std::string>{RANK_PROGRAM, mode}, rank_environment(r, n, port)));
  }
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string of(pid_t pid, const char* what) { return "/proc/" + std::to_string(pid) + "/" + what; }

// What the process maps so that others see its writes, as "device inode name".
std::set<std::string> shared_mappings(const std::string& maps) {
  std::set<std::string> found;
  std::istringstream lines(contents(maps));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string addresses, access, offset, device, inode, name;
    fields >> addresses >> access >> offset >> device >> inode;
    std::getline(fields >> std::ws, name);
    if (access.size() == 4 && access[3] == 's') found.insert(device + " " + inode + " " + name);
  }
  return found;
}

std::set<std::string> mapped_by_anybody() {
  std::set<std::string> found;
  for (auto& entry : std::filesystem::directory_iterator("/proc"))
    if (std::isdigit(entry.path().filename().string()[0])) found.merge(shared_mappings(entry.path() / "maps"));
  return found;
}

// The names of the process's Unix sockets; an abstract one's begins with @.
std::vector<std::string> unix_sockets(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code gone;
  for (auto& entry : std::filesystem::directory_iterator(of(pid, "fd"), gone)) {
    std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> names;
  std::istringstream lines(contents(of(pid, "net/unix")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string field[8];
    for (auto& f : field) fields >> f;
    if (inodes.contains(field[6]) && !field[7].empty()) names.push_back(field[7]);
  }
  return names;
}

std::set<std::string> dev_shm() {
  std::set<std::string> names;
  std::error_code missing;
  for (auto& entry : std::filesystem::directory_iterator("/dev/shm", missing)) names.insert(entry.path().filename());
  return names;
}

TEST(OneHost, AlmostNoDevShmIsEnough) {
  World w(2, "small_shm");
  for (auto& r : w.ranks) EXPECT_EQ(r->wait(), 0) << r->output();
}

TEST(OneHost, SharedMemoryHasNoName) {
  World w(2, "hold");
  for (auto& r : w.ranks) ASSERT_TRUE(r->wait_for_output("is ready")) << r->output();
  for (auto& r : w.ranks) {
    auto mappings = shared_mappings(of(r->pid(), "maps"));
    EXPECT_GE(mappings.size(), 3u);  // two arenas and the control block
    for (auto& m : mappings) EXPECT_NE(m.find("/memfd:holon-"), std::string::npos) << m;
    for (auto& name : unix_sockets(r->pid())) EXPECT_EQ(name[0], '@') << name;
  }
  for (auto& r : w.ranks) r->send_signal(SIGKILL);
}

TEST(OneHost, NothingIsLeftWhenAllRanksAreKilled) {
  const auto before = dev_shm();
  World w(3, "hold");
  std::set<std::string> theirs;
  for (auto& r : w.ranks) ASSERT_TRUE(r->wait_for_output("is ready")) << r->output();
  for (auto& r : w.ranks) theirs.merge(shared_mappings(of(r->pid(), "maps")));
  ASSERT_GE(theirs.size(), 4u);
  for (auto& r : w.ranks) r->send_signal(SIGKILL);
  for (auto& r : w.ranks) EXPECT_EQ(r->wait(), 128 + SIGKILL);
  // The kernel frees a memfd with its last mapping and descriptor, and only the ranks had descriptors.
  for (auto& m : mapped_by_anybody()) EXPECT_FALSE(theirs.contains(m)) << m;
  for (auto& name : dev_shm()) EXPECT_TRUE(before.contains(name) || name.find("holon") == std::string::npos) << name;
  int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(static_cast<uint16_t>(w.port));
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0) << "port " << w.port << " is still taken";
  close(fd);
}

TEST(OneHost, EightRanksShareTwoCores) {
  World w(8, "crowd");
  for (auto& r : w.ranks) EXPECT_EQ(r->wait(), 0) << r->output();
}

// The limit is that of an ordinary user, for the launcher and each rank.
TEST(OneHost, HoldsManyRanks) {
#if defined(HOLON_ADDRESS_SANITIZER) || defined(HOLON_THREAD_SANITIZER)
  const std::string ranks = "48", arena_gb = "4";  // each takes some 100 MiB, and of addresses there are few
#else
  const std::string ranks = "256", arena_gb;
#endif
  Process all({"/bin/sh", "-c", R"(ulimit -n 1024; exec "$0" --nproc_per_node "$1" "$2" barrier)", HOLON_LAUNCH, ranks,
               RANK_PROGRAM},
              {{"HOLON_COMM_TIMEOUT_S", "240"},
               {"HOLON_RENDEZVOUS_TIMEOUT_S", "240"},
               {"OMP_NUM_THREADS", "1"},
               {"HOLON_ARENA_GB", arena_gb}});
  ASSERT_EQ(all.wait(280), 0) << all.output();
  for (int r = 0; r < std::stoi(ranks); ++r)
    EXPECT_NE(all.output().find(fmt::format("rank {} ok", r)), std::string::npos) << r;
}

}  // namespace
}  // namespace holon::comm::test
