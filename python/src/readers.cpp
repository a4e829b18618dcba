// Readers of data files, the order of samples, and batches as global tensors.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "args.h"
#include "bind.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/data/corpus.h"
#include "holon/data/idx.h"
#include "holon/data/join.h"
#include "holon/data/mnist.h"
#include "holon/data/place.h"
#include "holon/data/sampler.h"
#include "holon/data/synthetic_digits.h"

namespace holon::python {

namespace {

std::vector<FilePath> paths_of(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

}  // namespace

void bind_readers(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "num_threads", [] { return num_threads(); },
      "The number of threads that kernels called from this thread may use.");
  m.def(
      "set_num_threads", [](int n) { set_num_threads(n); }, "n"_a,
      "Sets the number of threads that kernels called from this thread may use.");
  m.def("permutation", &data::permutation, "seed"_a, "epoch"_a, "n"_a,
        "0 to n - 1 in an order that depends only on seed and epoch.");
  m.def(
      "part_rows",
      [](int64_t size, PlacementHandle placement, SbpHandle sbp) {
        return data::part_rows(size, expect_placement(placement, "part_rows"), expect_nd_sbp(sbp, "part_rows"));
      },
      "size"_a, "placement"_a, "sbp"_a, "The first row and the number of rows that this rank has of `size` rows.");
  m.def(
      "read_idx",
      [](const std::string& path) {
        nb::gil_scoped_release released;
        return data::read_idx(path);
      },
      "path"_a, "The values of an IDX file as a local tensor.");
  m.def(
      "find_mnist", [](const std::vector<std::string>& folders) { return data::mnist_folder(paths_of(folders)); },
      "folders"_a, "The first of the folders that has MNIST's four files.");
  m.def(
      "read_mnist",
      [](const std::string& folder, bool train) {
        nb::gil_scoped_release released;
        return data::read_mnist(folder, train);
      },
      "folder"_a, "train"_a, "Images, uint8 [samples, 28, 28], and labels, uint8 [samples].");
  m.def(
      "draw_digits",
      [](int64_t n, uint64_t seed, uint64_t stream) {
        nb::gil_scoped_release released;
        return data::draw_digits(n, seed, stream);
      },
      "n"_a, "seed"_a, "stream"_a, "Generated digits, uint8 [n, 28, 28], and their labels, uint8 [n].");
  m.def(
      "write_synthetic_mnist",
      [](const std::string& folder, int64_t train, int64_t test, uint64_t seed, bool force) {
        nb::gil_scoped_release released;
        data::write_synthetic_mnist(folder, {.train = train, .test = test, .seed = seed, .force = force});
      },
      "folder"_a, "train"_a, "test"_a, "seed"_a, "force"_a, "Writes MNIST's four files with generated digits.");
  nb::class_<data::BatchJoiner>(m, "BatchJoiner", "Joins batches of which each rank loaded its own rows.")
      .def(
          "__init__",
          [](data::BatchJoiner* self, PlacementHandle placement, SbpHandle sbp) {
            new (self) data::BatchJoiner(expect_placement(placement, "DataLoader"), expect_nd_sbp(sbp, "DataLoader"));
          },
          "placement"_a, "sbp"_a)
      .def(
          "join",
          [](data::BatchJoiner& joiner, const std::vector<Tensor>& rows, int64_t samples,
             HandleOf<"Sequence[float | int | None]"> padding, uint64_t structure) {
            data::Padding values;
            if (!padding.is_none())
              for (nb::handle value : padding) {
                Scalar s;
                if (!value.is_none() && !to_scalar(value.ptr(), &s))
                  fail_type("DataLoader: a padding_value is a number, not {}.", describe(value.ptr()));
                values.push_back(value.is_none() ? std::nullopt : std::optional(s));
              }
            return joiner.join(rows, samples, values, structure);
          },
          "rows"_a, "samples"_a, "padding"_a = nb::none(), "structure"_a = 0,
          "The global tensors of `samples` rows, one for each tensor of the batch. Collective over the world.");
  nb::class_<data::ByteCorpus>(m, "ByteCorpus", "The bytes of many files as one row.")
      .def(
          "__init__",
          [](data::ByteCorpus* self, const std::vector<std::string>& files) {
            new (self) data::ByteCorpus(paths_of(files));
          },
          "files"_a)
      .def("__len__", &data::ByteCorpus::size)
      .def(
          "read",
          [](const data::ByteCorpus& c, int64_t offset, int64_t n) {
            if (n < 0 || n > c.size())
              fail(ErrorKind::kIndex, "corpus: {} bytes were requested; it has {}.", n, c.size());
            std::string text(to_size(n), '\0');
            c.read(offset, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
            return nb::bytes(text.data(), text.size());
          },
          "offset"_a, "n"_a, "n bytes from offset on.")
      .def(
          "rows",
          [](const data::ByteCorpus& c, const std::vector<int64_t>& offsets, int64_t length) {
            return c.rows(offsets, length);
          },
          "offsets"_a, "length"_a, "One row of `length` bytes for each offset, as int64 [offsets, length].");
  m.def(
      "files_below",
      [](const std::string& folder, const std::string& ending) { return data::files_below(folder, ending); },
      "folder"_a, "ending"_a, "All regular files below a folder whose names end so, sorted.");
}

}  // namespace holon::python
