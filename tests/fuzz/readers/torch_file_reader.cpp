// A whole file of torch.save(): the archive, its program, and every tensor.
#include "checkpoint/other_files.h"
#include "holon/base/error.h"
#include "holon/checkpoint/checkpoint.h"
#include "memory_file.h"
#include "reader.h"

using namespace holon;

std::vector<std::string> seeds() {
  using checkpoint::PickleText;
  using checkpoint::zip_of;
  PickleText p;
  p.raw("}(").text("w").tensor("FloatStorage", "0", 24, 2, {3, 4}, {4, 1});
  p.text("t").tensor("FloatStorage", "0", 24, 0, {4, 6}, {1, 4}).text("s");
  p.tensor("FloatStorage", "0", 24, 1, {3, 2}, {7, 2}).text("b").tensor("BoolStorage", "1", 2, 0, {2}, {1}).raw("u");
  return {zip_of({{"a/data.pkl", p.str()},
                  {"a/byteorder", "little"},
                  {"a/data/0", std::string(96, '\1')},
                  {"a/data/1", std::string(2, '\1')}}),
          zip_of({{"x/data.pkl", PickleText().raw("N").str()}})};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  try {
    load(file.path());
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) throw;
  }
  return 0;
}
