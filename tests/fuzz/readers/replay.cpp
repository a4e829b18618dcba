// Runs a reader on its seeds and on random changes of them, the same in every run, where libFuzzer is not to be had.
//
//   huggingface_index_reader [ROUNDS [SEED]]
//   huggingface_index_reader --write FOLDER   writes the seeds, for libFuzzer's corpus
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "reader.h"

namespace {

constexpr int kRounds = 20000;
constexpr long kMostKib = 1 << 20;  // of memory

using Random = std::mt19937;

size_t below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

std::string changed(std::string bytes, const std::vector<std::string>& all, Random& random) {
  static const std::string kNumbers[] = {"\xff\xff\xff\xff",
                                         "\xff\xff\xff\x7f",
                                         std::string(8, '\xff'),
                                         std::string(8, '\0'),
                                         "0",
                                         "-1",
                                         "9",
                                         "99999999999999999999",
                                         "1e30",
                                         "[",
                                         "{",
                                         "\"",
                                         "}"};
  for (size_t n = 1 + below(random, 4); n > 0; --n) {
    const size_t at = below(random, bytes.size() + 1), length = std::min(below(random, 40), bytes.size() - at);
    switch (random() % 8) {
      case 0:
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 3: bytes.erase(at, length); break;
      case 4: bytes.insert(below(random, bytes.size()), bytes.substr(at, length)); break;
      case 5: {
        const std::string& number = kNumbers[random() % std::size(kNumbers)];
        bytes.replace(at, random() % 2 ? std::min(number.size(), bytes.size() - at) : 0, number);
        break;
      }
      case 6: {
        const std::string& other = all[below(random, all.size())];
        const size_t from = below(random, other.size());
        bytes.replace(at, length, other.substr(from, below(random, 60)));
        break;
      }
      default: bytes.resize(at);
    }
  }
  return bytes;
}

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  const auto all = seeds();
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) {
    for (size_t i = 0; i < all.size(); ++i)
      std::ofstream(std::string(argv[2]) + "/seed-" + std::to_string(i), std::ios::binary) << all[i];
    return 0;
  }
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kRounds;
  Random random(argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 1);
  for (auto& seed : all) {
    run(seed);
    for (size_t n = 0; n < seed.size(); n += 1 + seed.size() / 200) run(seed.substr(0, n));
  }
  for (int i = 0; i < rounds; ++i) run(changed(all[below(random, all.size())], all, random));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%d rounds, %ld KiB of memory at most\n", rounds, usage.ru_maxrss);
  return usage.ru_maxrss > kMostKib;
}
