// Which processor cores a process may use.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "holon/base/index.h"

namespace holon::comm {

class CoreSet {
 public:
  CoreSet() { CPU_ZERO(&set_); }
  static CoreSet of_this_process() {
    CoreSet s;
    if (sched_getaffinity(0, sizeof s.set_, &s.set_) != 0)
      for (long i = 0; i < std::clamp<long>(sysconf(_SC_NPROCESSORS_ONLN), 1, CPU_SETSIZE); ++i)
        CPU_SET(to_size(i), &s.set_);
    return s;
  }
  // Text of one hexadecimal digit per four cores, the first cores first.
  static CoreSet parse(const std::string& text) {
    CoreSet s;
    for (size_t i = 0; i < text.size() * 4 && i < CPU_SETSIZE; ++i) {
      char c = text[i / 4];
      int digit = c >= 'a' ? c - 'a' + 10 : c - '0';
      if (digit >> (i % 4) & 1) CPU_SET(i, &s.set_);
    }
    return s;
  }
  std::string str() const {
    std::string text;
    for (size_t i = 0; i < CPU_SETSIZE; i += 4) {
      int digit = 0;
      for (size_t k = 0; k < 4; ++k) digit |= CPU_ISSET(i + k, &set_) ? 1 << k : 0;
      text.push_back("0123456789abcdef"[digit]);
    }
    text.erase(text.find_last_not_of('0') + 1);
    return text;
  }
  void add(const CoreSet& other) { CPU_OR(&set_, &set_, &other.set_); }

  // How many, or fewer if the control group may not use them fully.
  int count() const {
    static const int quota = [] {
      std::ifstream file("/sys/fs/cgroup/cpu.max");
      double us = 0, period = 0;
      return file >> us >> period && period > 0 ? std::max(1, static_cast<int>(us / period)) : CPU_SETSIZE;
    }();
    return std::clamp(CPU_COUNT(&set_), 1, quota);
  }

 private:
  cpu_set_t set_;
};

}  // namespace holon::comm
