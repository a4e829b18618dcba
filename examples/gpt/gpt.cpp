// Trains a small GPT to write Python, on any number of ranks: the twin of train.py.
//   ./gpt                                      (one rank)
//   holon-launch --nproc_per_node 4 ./gpt --dp 2 --tp 2
//   holon-launch --nproc_per_node 4 ./gpt --tp 2 --pipeline 2
// --graph compiles the step, which a pipeline needs anyway. The text is the source of Python's standard library, or
// files of your own (--data). At the end it prints the loss on text that was not trained on and the loss of the best
// guess from one byte before. The layout changes the speed, not the numbers.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <set>

#include "model.h"

namespace {

namespace fs = std::filesystem;
using namespace gpt;
using flow::data::ByteCorpus;

struct Options {
  int64_t dp = 0, tp = 1, pipeline = 1, micro_batches = 0, steps = 0, layers = 4, width = 128, heads = 4, length = 128,
          batch = 16;
  double seconds = 75, lr = 3e-3;
  uint64_t seed = 1;
  bool graph = false, amp = false;
  std::string device = "cpu";
  std::vector<std::string> files;
};

uint32_t crc32(const std::string& text) {
  uint32_t crc = ~0u;
  for (unsigned char c : text) {
    crc ^= c;
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

// The modules of the newest Python below /usr/lib or /usr/local/lib, without tests and installed packages, by name.
std::vector<std::pair<std::string, fs::path>> standard_library() {
  static const std::set<std::string> skipped{"test",          "tests",       "idle_test", "site-packages",
                                             "dist-packages", "__pycache__", "lib2to3"};
  fs::path root;
  for (auto base : {"/usr/lib", "/usr/local/lib"})
    for (auto& entry : fs::directory_iterator(base, fs::directory_options::skip_permission_denied))
      if (entry.path().filename().string().starts_with("python3.") && fs::exists(entry.path() / "os.py"))
        root = std::max(root, entry.path());
  std::vector<std::pair<std::string, fs::path>> found;
  if (root.empty()) return found;
  for (const fs::path path : flow::data::files_below(root, ".py")) {
    auto name = path.lexically_relative(root);
    if (std::none_of(name.begin(), name.end(), [&](auto& part) { return skipped.count(part.string()); }))
      found.emplace_back(name.generic_string(), path);
  }
  return found;
}

// The texts to train on and to validate with, nine to one: whole files, by a hash of their names.
std::pair<ByteCorpus, ByteCorpus> load(const std::vector<std::string>& files) {
  auto named = standard_library();
  if (!files.empty()) named.clear();
  for (auto& f : files) named.emplace_back(fs::path(f).filename().string(), f);
  std::vector<fs::path> parts[2];
  for (auto& [name, path] : named) parts[crc32(name) % 10 == 0].push_back(path);
  if (parts[0].empty() || parts[1].empty())
    flow::fail_value(
        "{} files are too few to train on nine in ten and validate with the others: give more with --data FILE ...",
        named.size());
  return {ByteCorpus(parts[0]), ByteCorpus(parts[1])};
}

double bigram_loss(const ByteCorpus& text, const std::vector<Tensor>& pairs) {
  std::vector<uint8_t> bytes(static_cast<size_t>(text.size()));
  text.read(0, bytes);
  std::vector<double> counts(65536, 1.0), totals(256, 256.0);
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    ++counts[bytes[i] * 256u + bytes[i + 1]];
    ++totals[bytes[i]];
  }
  double sum = 0, n = 0;
  for (auto& rows : pairs) {
    auto data = rows.data<int64_t>();
    auto width = static_cast<size_t>(rows.size(1));
    for (size_t i = 0; i < data.size(); ++i) {
      if (i % width == 0) continue;
      auto before = static_cast<size_t>(data[i - 1]), after = static_cast<size_t>(data[i]);
      sum -= std::log(counts[before * 256 + after] / totals[before]);
      ++n;
    }
  }
  return sum / n;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Rises over the warm-up, then falls to a tenth along half a cosine.
double learning_rate(int64_t step, double done, double peak) {
  constexpr int64_t kWarmup = 40;
  if (step < kWarmup) return peak * static_cast<double>(step + 1) / kWarmup;
  return flow::optim::cosine_lr(static_cast<int64_t>(done * 1e6), peak, 0, 1000000, peak / 10);
}

int train(const Options& o) {
  auto [text, held_out] = load(o.files);
  if (std::min(text.size(), held_out.size()) < o.length + 2)
    flow::fail_value("{} bytes to train on and {} to validate with are too few for rows of {}: give larger files with "
                     "--data FILE ...",
                     text.size(), held_out.size(), o.length);
  bool first = flow::rank() == 0;
  if (first)
    std::printf("%lld bytes to train on, %lld to validate with; %lld x %lld x %lld ranks (data x tensor x pipeline "
                "parallel), %s\n",
                static_cast<long long>(text.size()), static_cast<long long>(held_out.size()),
                static_cast<long long>(o.dp), static_cast<long long>(o.tp), static_cast<long long>(o.pipeline),
                o.graph ? "compiled" : "eager");
  flow::manual_seed(o.seed);
  GPT model(o.layers, o.width, o.heads, o.length, Layout::over(o.dp, o.tp, o.pipeline, o.device));
  std::vector<Tensor> matrices, others;
  for (auto& p : model.parameters()) (p.ndim() == 2 ? matrices : others).push_back(p);
  flow::optim::AdamW optimizer(matrices, {.beta2 = 0.95, .weight_decay = 0.1, .group = {.clip_grad_max_norm = 1}});
  optimizer.add_group(others, {.beta2 = 0.95, .group = {.clip_grad_max_norm = 1}});
  std::optional<Step> graph;
  if (o.graph) graph.emplace(model, optimizer, static_cast<int>(o.micro_batches), o.amp);

  std::mt19937_64 random(o.seed);
  double begin = now(), shown = begin, recent = 0, progress = 0;
  int64_t step = 0;
  for (; progress < 1; ++step) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < o.batch; ++i)
      starts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(text.size() - o.length)));
    optimizer.set_lr(learning_rate(step, progress, o.lr));
    auto [seen, following] = model.pair(text.rows(starts, o.length + 1));
    Tensor loss;
    if (graph) {
      loss = flow::mean((*graph)(seen, following)[0]);  // over the micro-batches
    } else {
      optimizer.zero_grad();
      {
        flow::AutocastGuard autocast(flow::bfloat16, o.amp);
        loss = model.loss(seen, following);
      }
      loss.backward();
      optimizer.clip_grad();
      optimizer.step();
    }

    double value = loss.item().as_double();
    recent = step == 0 ? value : 0.9 * recent + 0.1 * value;
    // The ranks' clocks differ; broadcast takes that of the first for all.
    auto clock = flow::full({}, now() - begin, {.dtype = flow::float64})
                     .to_global(flow::Placement::all("cpu"), flow::sbp::broadcast());
    progress =
        o.steps ? static_cast<double>(step + 1) / static_cast<double>(o.steps) : clock.item().as_double() / o.seconds;
    if (first && (step == 0 || progress >= 1 || now() - shown >= 5)) {
      shown = now();
      std::printf("step %5lld  loss %.4f  %.0f bytes/s\n", static_cast<long long>(step + 1), recent,
                  static_cast<double>((step + 1) * o.batch * o.length) / (shown - begin));
      std::fflush(stdout);
    }
  }

  flow::NoGradGuard no_grad;
  std::vector<Tensor> pairs;
  constexpr int64_t kPairs = 24;
  double validation = 0;
  for (int64_t k = 0; k < kPairs; ++k) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < o.batch; ++i)
      starts.push_back((held_out.size() - o.length - 1) * (k * o.batch + i) / (kPairs * o.batch));
    pairs.push_back(held_out.rows(starts, o.length + 1));
    auto [seen, following] = model.pair(pairs.back());
    validation += model.loss(seen, following).item().as_double() / kPairs;
  }
  if (first)
    std::printf("after %lld steps, nats per byte on files that were not trained on:\nvalidation loss %.4f\nbigram loss "
                "    %.4f\n",
                static_cast<long long>(step), validation, bigram_loss(text, pairs));
  return std::isfinite(validation) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Trains a small GPT on a grid of ranks");
  app.add_option("--dp", o.dp, "groups that share the rows of a batch (default: what the others leave)");
  app.add_option("--tp", o.tp, "ranks that share the heads and hidden units of a block")->check(CLI::PositiveNumber);
  app.add_option("--pipeline", o.pipeline, "stages that share the blocks; more than one implies --graph")
      ->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", o.micro_batches,
                 "parts of a batch, one after another (default: twice the stages; 1 without)")
      ->check(CLI::PositiveNumber);
  app.add_flag("--graph", o.graph, "compile the training step");
  app.add_option("--device", o.device, "where the ranks keep their parts; cuda: a device for each rank")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--amp", o.amp, "products in bfloat16, parameters and sums in float32");
  app.add_option("--steps", o.steps, "steps to train (default: as many as --seconds allow)");
  app.add_option("--seconds", o.seconds)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--layers", o.layers)->capture_default_str();
  app.add_option("--width", o.width)->capture_default_str();
  app.add_option("--heads", o.heads)->capture_default_str();
  app.add_option("--length", o.length, "bytes that the model sees at once")->capture_default_str();
  app.add_option("--batch", o.batch, "rows of a batch, over all ranks")->capture_default_str();
  app.add_option("--lr", o.lr)->capture_default_str();
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--data", o.files, "files to learn from instead");
  CLI11_PARSE(app, argc, argv);
  int world = flow::world_size();
  if (!o.dp) o.dp = std::max<int64_t>(1, world / (o.tp * o.pipeline));
  if (!o.micro_batches) o.micro_batches = o.pipeline > 1 ? 2 * o.pipeline : 1;
  o.graph |= o.pipeline > 1 || o.micro_batches > 1;
  try {
    if (o.dp * o.tp * o.pipeline != world)
      flow::fail_value("--dp {} x --tp {} x --pipeline {} are {} ranks; {} are running", o.dp, o.tp, o.pipeline,
                       o.dp * o.tp * o.pipeline, world);
    if (o.layers < o.pipeline)
      flow::fail_value("--layers {} are fewer than --pipeline {}: a stage has a block at least", o.layers, o.pipeline);
    if (o.batch % o.micro_batches)
      flow::fail_value("--batch {} is not a multiple of --micro-batches {}", o.batch, o.micro_batches);
    if (o.heads % o.tp) flow::fail_value("--heads {} do not divide among --tp {}", o.heads, o.tp);
    return train(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", flow::rank(), e.what());
    return 1;
  }
}
