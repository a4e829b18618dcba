#include <atomic>
#include <cstring>
#include <string>

#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/kernels/cpu/table.h"

namespace holon::kernels {

#define HOLON_DECLARE_ISA(isa)                \
  namespace isa {                             \
  void fill_unary(Table& t);                  \
  void fill_binary(Table& t);                 \
  void fill_convert(Table& t);                \
  void fill_index(Table& t);                  \
  void fill_reduce(Table& t);                 \
  void fill_rows(Table& t);                   \
  void fill_channels(Table& t);               \
  void fill_optim(Table& t);                  \
  void fill_random(Table& t);                 \
  }                                           \
  static Table make_##isa(const char* name) { \
    Table t{};                                \
    t.name = name;                            \
    isa::fill_unary(t);                       \
    isa::fill_binary(t);                      \
    isa::fill_convert(t);                     \
    isa::fill_index(t);                       \
    isa::fill_reduce(t);                      \
    isa::fill_rows(t);                        \
    isa::fill_channels(t);                    \
    isa::fill_optim(t);                       \
    isa::fill_random(t);                      \
    return t;                                 \
  }

HOLON_DECLARE_ISA(isa_base)
#ifdef HOLON_HAVE_X86_LEVELS
HOLON_DECLARE_ISA(isa_v3)
HOLON_DECLARE_ISA(isa_v4)
#endif

namespace {

struct Tables {
  Table list[3];
  int count = 0;

  Tables() {
    list[count++] = make_isa_base("base");
#ifdef HOLON_HAVE_X86_LEVELS
    __builtin_cpu_init();
    // x86-64-v3 and -v4 in full: the compiler may use any of their instructions.
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt");
    if (v3) list[count++] = make_isa_v3("v3");
    if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      list[count++] = make_isa_v4("v4");
#endif
  }

  const Table* find(const char* name) const {
    for (int i = 0; i < count; ++i)
      if (!std::strcmp(list[i].name, name)) return &list[i];
    return nullptr;
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

std::atomic<const Table*> selected{nullptr};

const Table* named(const char* name) {
  if (const Table* t = tables().find(name)) return t;
  std::string known;
  for (int i = 0; i < tables().count; ++i) known += (i ? ", " : "") + std::string(tables().list[i].name);
  fail_value("the instruction set \"{}\" was requested; this machine has {}.", name, known);
}

const Table* choose() {
  std::string wanted = settings::text("HOLON_ISA");
  const Table* t = wanted.empty() ? &tables().list[tables().count - 1] : named(wanted.c_str());
  selected.store(t, std::memory_order_release);
  return t;
}

}  // namespace

const Table& table() {
  const Table* t = selected.load(std::memory_order_acquire);
  return *(t ? t : choose());
}

int isa_count() { return tables().count; }
const char* isa_name(int i) { return tables().list[i].name; }
void select_isa(const char* name) { selected.store(named(name), std::memory_order_release); }

void fail_division_by_zero() { fail_value("integer division or remainder by zero."); }

}  // namespace holon::kernels
