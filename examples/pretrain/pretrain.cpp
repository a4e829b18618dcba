// Trains a Llama from the beginning on text files, on any number of ranks: the twin of pretrain.py, with bytes as
// tokens.
//   ./pretrain RUN --text FILE... --depth 4
//   holon-launch --nproc_per_node 4 ./pretrain RUN --text FILE... --dp 2 --tp 2
// RUN has tokens.bin (16 bits each, read by memory mapping), checkpoints, from which an interrupted run continues, and
// at the end model, which transformers reads. --depth is the dial: all other sizes follow from it.
#include <fcntl.h>
#include <holon/holon.h>
#include <holon/models.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace {

namespace flow = holon;
namespace fs = std::filesystem;
using flow::Tensor;

constexpr int64_t kEnd = 256, kVocabulary = 320;  // bytes, and the end of a document; a multiple of 64

struct Options {
  std::string run;
  std::vector<std::string> text;
  int64_t depth = 4, length = 256, rows = 8, batch_tokens = 0, steps = 0, dp = 0, tp = 1, evaluate_every = 100,
          save_every = 100, sample = 64;
  uint64_t seed = 1;
  bool amp = false;
};

// Tokens of 16 bits in a file, mapped into memory.
class Tokens {
 public:
  explicit Tokens(const fs::path& path) : size_(fs::file_size(path) / 2) {
    const int file = open(path.c_str(), O_RDONLY);
    void* at = file < 0 ? MAP_FAILED : mmap(nullptr, size_ * 2, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (at == MAP_FAILED) flow::fail_runtime("{} cannot be mapped into memory.", path.string());
    data_ = static_cast<const uint16_t*>(at);
  }
  ~Tokens() { munmap(const_cast<uint16_t*>(data_), size_ * 2); }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  int64_t size() const { return static_cast<int64_t>(size_); }
  uint16_t operator[](int64_t i) const { return data_[i]; }

 private:
  size_t size_;
  const uint16_t* data_;
};

// Written once, by rank 0; the description last, as with it the tokens are complete.
void tokenize(const Options& o) {
  const fs::path run = o.run;
  if (flow::rank() == 0 && !fs::exists(run / "tokens.json")) {
    if (o.text.empty())
      flow::fail_value("{} is not there. Name the documents to make it of with --text FILE...",
                       (run / "tokens.bin").string());
    fs::create_directories(run);
    std::ofstream out(run / "tokens.bin", std::ios::binary);
    for (const auto& name : o.text) {
      std::ifstream file(name, std::ios::binary);
      if (!file) flow::fail_value("{} cannot be read.", name);
      std::ostringstream all;
      all << file.rdbuf();
      std::vector<uint16_t> ids;
      for (unsigned char c : all.str()) ids.push_back(c);
      ids.push_back(kEnd);
      out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));
    }
    out.close();
    std::ofstream(run / "tokens.json") << R"({"end": 256, "vocabulary": 257})";
  }
  flow::barrier();
}

std::string config_of(const Options& o) {
  const int64_t width = 64 * o.depth, hidden = (width * 8 / 3 + 63) / 64 * 64;
  std::ostringstream s;
  s << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": )" << kVocabulary
    << R"(, "hidden_size": )" << width << R"(, "intermediate_size": )" << hidden << R"(, "num_hidden_layers": )"
    << o.depth << R"(, "num_attention_heads": )" << o.depth << R"(, "num_key_value_heads": )" << o.depth
    << R"(, "max_position_embeddings": )" << std::max<int64_t>(o.length, 256)
    << R"(, "tie_word_embeddings": false, "rms_norm_eps": 1e-05, "eos_token_id": 256})";
  return s.str();
}

// Rows that begin at the given places, and which document of its row each token belongs to.
struct Rows {
  Tensor ids, documents;
};
Rows packed(const Tokens& tokens, const std::vector<int64_t>& starts, int64_t length) {
  std::vector<int64_t> ids, documents;
  for (int64_t start : starts) {
    int64_t document = 0;
    for (int64_t i = start; i < start + length; ++i) {
      ids.push_back(tokens[i]);
      documents.push_back(document);
      document += tokens[i] == kEnd;
    }
  }
  const flow::Dims shape{static_cast<int64_t>(starts.size()), length};
  return {flow::tensor(ids, shape), flow::tensor(documents, shape)};
}

// A warm-up over a twentieth of the steps, then half a cosine down to a tenth.
double learning_rate(int64_t step, int64_t steps, double peak) {
  const int64_t warmup = std::max<int64_t>(1, steps / 20);
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  return flow::optim::cosine_lr(step - warmup, peak, 0, std::max<int64_t>(1, steps - warmup), peak / 10);
}

// The mean of the parameters over the steps, and its exchange with them.
struct Mean {
  explicit Mean(const flow::nn::StateDict& parameters) {
    for (const auto& [name, p] : parameters) values.emplace_back(name, flow::clone(p.detach()));
  }
  void update(const flow::nn::StateDict& parameters, int64_t step) {
    flow::NoGradGuard no_grad;
    const double n = static_cast<double>(step), decay = std::min(0.999, (1 + n) / (10 + n));
    for (size_t i = 0; i < values.size(); ++i) flow::lerp_(values[i].second, parameters[i].second, 1 - decay);
  }
  void swap(const flow::nn::StateDict& parameters) {
    flow::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i) {
      Tensor now = flow::clone(parameters[i].second.detach());
      flow::copy_(parameters[i].second, values[i].second);
      flow::copy_(values[i].second, now);
    }
  }
  flow::nn::StateDict values;
};

int train(Options o) {
  const bool first = flow::rank() == 0;
  o.dp = o.dp ? o.dp : std::max<int64_t>(1, flow::world_size() / o.tp);
  tokenize(o);
  const Tokens tokens(fs::path(o.run) / "tokens.bin");
  const int64_t split = tokens.size() * 19 / 20;
  if (tokens.size() - split <= o.length)
    flow::fail_value("{} tokens are too few for rows of {}. Give more --text.", tokens.size(), o.length);
  flow::manual_seed(o.seed);
  auto model = flow::models::from_config(flow::models::Config(config_of(o)), {.dp = o.dp, .tp = o.tp});
  int64_t count = 0;
  std::vector<Tensor> matrices, others;
  for (auto& p : model.parameters()) {
    (p.ndim() > 1 ? matrices : others).push_back(p);
    count += p.numel();
  }
  const int64_t micro = o.rows * o.length, wanted = o.batch_tokens ? o.batch_tokens : 4096 * o.depth;
  const int64_t accumulate = std::max<int64_t>(1, (wanted + micro / 2) / micro);
  const int64_t steps = o.steps ? o.steps : std::max<int64_t>(20, 20 * count / (accumulate * micro));
  const double peak = 3e-3 * std::sqrt(4.0 / static_cast<double>(o.depth));
  flow::optim::AdamW optimizer(matrices, {.beta2 = 0.95, .weight_decay = 0.1});
  optimizer.add_group(others, {.beta2 = 0.95, .weight_decay = 0});
  const flow::nn::StateDict parameters = model.named_parameters();
  Mean mean(parameters);
  flow::checkpoint::Checkpointer checkpoints(fs::path(o.run) / "checkpoints", {.asynchronous = true});
  std::mt19937_64 random(o.seed);
  int64_t begin = 0;
  if (auto found = checkpoints.load()) {
    model.load_state_dict(found->value["model"].state_dict());
    optimizer.load_state_dict(found->value["optimizer"].optimizer_state());
    flow::NoGradGuard no_grad;
    for (const auto& [name, value] : found->value["mean"].state_dict())
      for (auto& [own, to] : mean.values)
        if (own == name) flow::copy_(to, value.to_global(to.placement(), to.nd_sbp()));  // of another layout perhaps
    std::istringstream(found->value["random"].text()) >> random;
    found->restore_random_state();
    begin = found->step;
  }
  if (first)
    std::printf("%lld parameters, %lld tokens, %lld steps of %lld x %lld tokens, %lld x %lld ranks (data x tensor "
                "parallel), from step %lld\n",
                static_cast<long long>(count), static_cast<long long>(split), static_cast<long long>(steps),
                static_cast<long long>(accumulate), static_cast<long long>(micro), static_cast<long long>(o.dp),
                static_cast<long long>(o.tp), static_cast<long long>(begin));
  auto evaluate = [&] {
    constexpr int64_t kBatches = 8;
    mean.swap(parameters);
    model.eval();
    flow::NoGradGuard no_grad;
    double sum = 0;
    const int64_t last = tokens.size() - split - o.length;
    for (int64_t b = 0; b < kBatches; ++b) {
      std::vector<int64_t> starts;
      for (int64_t r = 0; r < o.rows; ++r) starts.push_back(split + last * (b * o.rows + r) / (kBatches * o.rows));
      auto [ids, documents] = packed(tokens, starts, o.length);
      sum += model.loss(ids, ids, {.document_ids = documents}).item<double>();
    }
    model.train();
    mean.swap(parameters);
    return sum / kBatches;
  };
  double first_loss = 0, loss = 0;
  const auto clock = std::chrono::steady_clock::now();
  for (int64_t step = begin; step < steps; ++step) {
    optimizer.set_lr(learning_rate(step, steps, peak));
    optimizer.zero_grad();
    loss = 0;
    for (int64_t k = 0; k < accumulate; ++k) {
      std::vector<int64_t> starts;
      for (int64_t r = 0; r < o.rows; ++r)
        starts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(split - o.length)));
      auto [ids, documents] = packed(tokens, starts, o.length);
      Tensor part;
      {
        flow::AutocastGuard autocast(flow::bfloat16, o.amp);
        part = model.loss(ids, ids, {.document_ids = documents}) / static_cast<double>(accumulate);
      }
      part.backward();
      loss += part.item<double>();
    }
    flow::optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    mean.update(parameters, step);
    if (step == begin) first_loss = loss;
    const int64_t done = step + 1;
    if (done % o.evaluate_every == 0 || done == steps) {
      const double validation = evaluate();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - clock).count();
      if (first)
        std::printf("step %lld: loss %.4f, validation %.4f, %.0f tokens/s\n", static_cast<long long>(done), loss,
                    validation, static_cast<double>((done - begin) * accumulate * micro) / seconds);
    }
    if (done % o.save_every == 0 || done == steps) {
      std::ostringstream state;
      state << random;
      checkpoints.save(done,
                       {{"model", model.state_dict()},
                        {"optimizer", optimizer.state_dict()},
                        {"mean", mean.values},
                        {"random", state.str()}});
    }
  }
  checkpoints.wait();
  mean.swap(parameters);
  model.eval();
  model.save_pretrained(fs::path(o.run) / "model");
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 8; ++i) prompt.push_back(tokens[split + i]);
  const int64_t room = std::min(o.sample, std::max<int64_t>(o.length, 256) - 8);
  Tensor written = flow::models::generate(model, flow::tensor(prompt, {1, 8}),
                                          {.max_new_tokens = room,
                                           .do_sample = true,
                                           .sampling = {.temperature = 0.8},
                                           .seed = o.seed,
                                           .pad_token_id = kEnd});
  if (first) {
    std::string text;
    for (int64_t id : flow::to_vector<int64_t>(written))
      if (id < kEnd) text.push_back(static_cast<char>(id));
    std::printf("a sample: %s\n", text.c_str());
  }
  return begin == steps || loss < first_loss ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Trains a Llama from the beginning on text files.");
  app.add_option("run", o.run, "folder of tokens, checkpoints and the model")->required();
  app.add_option("--text", o.text, "documents, read once");
  app.add_option("--depth", o.depth, "layers; all other sizes follow")->check(CLI::PositiveNumber);
  app.add_option("--length", o.length, "tokens of a row")->check(CLI::Range(2, 1 << 20));
  app.add_option("--rows", o.rows, "rows that are computed at once, over all ranks")->check(CLI::PositiveNumber);
  app.add_option("--batch-tokens", o.batch_tokens, "tokens of a step (default: grows with the depth)");
  app.add_option("--steps", o.steps, "default: 20 tokens for each parameter");
  app.add_option("--dp", o.dp, "groups that share the rows (default: what --tp leaves)");
  app.add_option("--tp", o.tp, "ranks that share the heads, hidden units and vocabulary")->check(CLI::PositiveNumber);
  app.add_flag("--amp", o.amp, "products in bfloat16");
  app.add_option("--evaluate-every", o.evaluate_every)->check(CLI::PositiveNumber);
  app.add_option("--save-every", o.save_every)->check(CLI::PositiveNumber);
  app.add_option("--sample", o.sample, "tokens to write at the end")->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed);
  CLI11_PARSE(app, argc, argv);
  try {
    return train(o);
  } catch (const flow::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
