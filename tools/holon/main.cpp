// The command `holon`: what a user does with Holon at the shell, except starting programs (holon-launch).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "contract.h"
#include "holon/base/error.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/tools.h"
#include "holon/checkpoint/verify.h"
#include "holon/conformance/check.h"
#include "holon/registry/library.h"

namespace holon {
namespace {

using checkpoint::Progress;

constexpr int kDiffer = 1, kFailed = 2;

// A line that is rewritten twice a second, where standard error is a terminal.
Progress progress_line() {
  if (!isatty(STDERR_FILENO)) return {};
  return [next = std::chrono::steady_clock::now(), shown = false](uint64_t done, uint64_t all) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (done < all ? now < next : !shown) return;
    next = now + std::chrono::milliseconds(500);
    shown = true;
    std::fprintf(stderr, "\r%3.0f %% of %.1f MiB%s",
                 all == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(all),
                 static_cast<double>(all) / (1 << 20), done < all ? "" : "\n");
  };
}

struct Arguments {
  std::string path, other, format = "holon", shard_size = "5GB", dequantize;
  std::optional<int> files;
  double tolerance = 0;
  bool json = false;
  std::vector<std::string> ops, samples;
};

int inspect(const Arguments& a) {
  std::fputs(checkpoint::inspect(a.path, a.json).c_str(), stdout);
  return 0;
}

int verify(const Arguments& a) {
  const auto found = checkpoint::verify(a.path);
  std::printf("%s is whole: %lld files, %lld tensors, %llu bytes", a.path.c_str(), static_cast<long long>(found.files),
              static_cast<long long>(found.tensors), static_cast<unsigned long long>(found.bytes));
  if (found.unchecked_bytes > 0)
    std::printf(", of which %llu are in files without checksums",
                static_cast<unsigned long long>(found.unchecked_bytes));
  std::printf("\n");
  return 0;
}

int diff(const Arguments& a) {
  const auto found = checkpoint::diff(a.path, a.other, a.tolerance, progress_line());
  for (auto& d : found) std::printf("%s: %s\n", d.tensor.c_str(), d.how.c_str());
  if (found.empty()) std::printf("the tensors are the same\n");
  return found.empty() ? 0 : kDiffer;
}

int convert(const Arguments& a) {
  checkpoint::ConvertOptions options{.shard_bytes = checkpoint::parse_bytes(a.shard_size), .files = a.files};
  if (a.format == "hf") options.format = Format::kHuggingFace;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64})
    if (a.dequantize == name(dtype)) options.dequantize = dtype;
  checkpoint::convert(a.path, a.other, options, progress_line());
  return 0;
}

int check_op(const Arguments& a) {
  std::vector<std::string> names = load_library(a.path);
  std::map<std::string, std::vector<conformance::Sample>> samples;
  for (auto& text : a.samples) {
    conformance::Sample s = conformance::parse_sample(text);
    samples[s.op].push_back(std::move(s));
  }
  if (!a.ops.empty()) names = a.ops;
  if (names.empty()) fail_value("{} declares no ops.", a.path);
  bool sound = true;
  for (auto& name : names) {
    auto given = samples.find(name);
    const auto report =
        conformance::check_op(name, given != samples.end() ? given->second : conformance::draw_samples(find_op(name)));
    std::fputs(report.str().c_str(), stdout);
    std::fflush(stdout);
    sound = sound && report.is_sound();
  }
  return sound ? 0 : kDiffer;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Holon's command: holon checkpoint looks at checkpoints and converts them, holon check-op proves the ops of a "
      "library, holon contract records what a program moves between ranks. Programs with several ranks are started by "
      "holon-launch.",
      "holon");
  app.require_subcommand(1);
  auto* checkpoints = app.add_subcommand("checkpoint",
                                         "What was saved: by flow.save(), a Checkpointer, Hugging Face's "
                                         "libraries or torch.save()");
  checkpoints->require_subcommand(1);
  Arguments a;
  int (*command)(const Arguments&) = nullptr;
  auto add = [&](const char* name, const char* text, int (*f)(const Arguments&)) {
    auto* sub = checkpoints->add_subcommand(name, text);
    sub->add_option("path", a.path, "A file or folder")->required();
    sub->callback([&command, f] { command = f; });
    return sub;
  };
  add("inspect", "Print the tensors: dtype, shape, layout, size", inspect)->add_flag("--json", a.json, "As JSON");
  add("verify", "Read everything and compare the checksums", verify);
  auto* differ = add("diff", "Compare the tensors of two; the exit status is 1 if they differ", diff);
  differ->add_option("other", a.other, "The other file or folder")->required();
  differ->add_option("--tolerance", a.tolerance, "How far numbers may be apart")->capture_default_str();
  auto to = [&](CLI::App* sub) {
    sub->add_option("output", a.other, "The file or folder to write")->required();
    return sub;
  };
  auto* converted = to(add("convert", "Write it in another format", convert));
  converted->add_option("--format", a.format, "holon: one file, or a folder of --files; hf: a folder of Hugging Face's")
      ->capture_default_str()
      ->check(CLI::IsMember({"holon", "hf"}));
  converted->add_option("--files", a.files, "Write a folder of so many files");
  converted->add_option("--shard-size", a.shard_size, "Of hf: the most bytes in a file")->capture_default_str();
  converted->add_option("--dequantize", a.dequantize, "The dtype that float8 and MXFP4 weights become")
      ->check(CLI::IsMember({"float16", "bfloat16", "float32", "float64"}));
  to(add("reshard", "Write it as a folder of another number of files", convert))
      ->add_option("--files", a.files, "How many files")
      ->required();
  auto* checked = app.add_subcommand("check-op",
                                     "Check the ops of a library: sharding rules, gradients, and calls on global "
                                     "tensors against local ones; the exit status is 1 if something is wrong");
  checked->add_option("library", a.path, "The shared library")->required();
  checked->add_option("--op", a.ops, "Check this op; can be repeated. All that the library declares otherwise");
  checked->add_option("--sample", a.samples,
                      "A call to check, as \"sum [5, 3]; dim=[0]\"; can be repeated. Drawn from the schema otherwise");
  checked->callback([&command] { command = check_op; });
  std::function<int()> contract_command;
  add_contract_commands(app, &contract_command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fail_value("{}. Add --help for the commands and options.", e.what());
  }
  return contract_command ? contract_command() : command(a);
}

}  // namespace
}  // namespace holon

int main(int argc, char** argv) {
  try {
    return holon::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "holon: %s\n", e.what());
    return holon::kFailed;
  }
}
