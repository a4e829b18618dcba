#include "holon/checkpoint/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/parallel.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/saving.h"
#include "holon/checkpoint/loading.h"
#include "holon/checkpoint/parts.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/data/atomic_file.h"
#include "holon/dispatch/draw_seed.h"

namespace holon::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStep = "step-", kAside = "abandoned-";
constexpr int kMostTries = 20;
constexpr auto kSlice = std::chrono::milliseconds(50);

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }

// nullopt: the name of something else.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  auto [at, error] = std::from_chars(name.data() + kStep.size(), end, step);
  if (error != std::errc() || at != end || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

bool complete(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / kIndexFile, none);
}

// The steps of all folders that are named as one.
std::vector<int64_t> steps_in(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none))
    if (auto step = step_of(it->path().filename().string())) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<int64_t> complete_steps(const fs::path& folder) {
  auto steps = steps_in(folder);
  std::erase_if(steps, [&](int64_t step) { return !complete(folder / step_name(step)); });
  return steps;
}

// Removes what dead saves have left of a checkpoint that is not complete. What a save under way has there stays, and
// so does what is not ours.
void collect(const fs::path& folder) {
  for (int64_t step : steps_in(folder)) {
    const fs::path path = folder / step_name(step);
    if (complete(path)) continue;
    sweep(path);
    ::rmdir(path.c_str());  // if it is an empty folder
  }
}

// What a dead save that was to replace a complete checkpoint has left in it.
void collect_inside(const fs::path& folder) {
  for (int64_t step : complete_steps(folder)) {
    const fs::path path = folder / step_name(step);
    std::error_code none;
    for (fs::directory_iterator it(path, none), end; !none && it != end; it.increment(none))
      if (it->path().filename().string().starts_with(".holon-")) {
        sweep(path);
        break;
      }
  }
}

void remove_oldest(const fs::path& folder, int64_t keep, int64_t newest) {
  const auto steps = complete_steps(folder);
  int64_t n = std::ssize(steps);
  for (int64_t step : steps) {
    if (n <= keep) return;
    if (step == newest) continue;
    const fs::path path = folder / step_name(step);
    std::error_code failed;
    // Without an index it does not count: if we are killed behind this, collect() does the rest.
    fs::remove(path / kIndexFile, failed);
    if (failed) {
      log::warn(fmt::format("Checkpointer: cannot remove the old checkpoint {}: {}.", path.string(), failed.message()));
      return;
    }
    sweep(path);
    ::rmdir(path.c_str());
    --n;
  }
}

// Complete checkpoints of later steps do not count any more: they get another name.
void set_aside_later(const fs::path& folder, int64_t step) {
  for (int64_t later : complete_steps(folder)) {
    if (later <= step) continue;
    const fs::path from = folder / step_name(later);
    fs::path to = folder / (std::string(kAside) + step_name(later));
    std::error_code failed;
    for (int i = 2; fs::exists(to, failed); ++i) to = folder / fmt::format("{}{}-{}", kAside, step_name(later), i);
    fs::rename(from, to, failed);
    if (failed)
      fail_runtime("cannot rename {}, which is later than step {}, from where this run continues, to {}: {}.",
                   from.string(), step, to.filename().string(), failed.message());
    log::warn(fmt::format("Checkpointer: this run continues from step {}; the later checkpoint {} is now {}.", step,
                          from.string(), to.filename().string()));
  }
  data::sync_folder(folder);
}

// What is not the same on all ranks, as text.
std::string own_text(const Value& own) {
  const RandomState& r = random_state();
  Value random = Value::List{static_cast<int64_t>(r.seed), r.seeded, r.local_counter, r.global_counter};
  Flat flat = flatten({{"own", own}, {"random", std::move(random)}});
  if (!flat.tensors.empty())
    fail_type("Checkpointer: '{}' is a tensor. What is each rank's own are numbers, text, and lists and dicts of "
              "these; save tensors with the value.",
              flat.tensors[0].first);
  return flat.tree;
}

void read_own(const std::vector<std::string>& texts, const std::string& name, Checkpoint& out) {
  if (texts.empty()) return;  // holon::save() wrote it
  const auto rank = to_size(Context::current().rank());
  const Value found = restore(texts[rank < texts.size() ? rank : 0], name, [&](const std::string&) -> Tensor {
    fail_runtime("{}: a rank's own value has a tensor. The file is damaged.", name);
  });
  try {
    out.own = found["own"];
    const Value& r = found["random"];
    out.random.seed = static_cast<uint64_t>(r[size_t{0}].integer());
    out.random.seeded = r[1].boolean();
    out.random.local_counter = r[2].integer();
    out.random.global_counter = r[3].integer();
  } catch (const Error& e) {
    fail_runtime("{}: a rank's own value cannot be read: {} The file is damaged.", name, e.what());
  }
}

}  // namespace

void Checkpoint::restore_random_state() const {
  random_state() = random;
  forget_agreed_seeds();
}

struct Checkpointer::Impl {
  // An asynchronous save.
  struct UnderWay {
    int64_t step = 0;
    std::thread thread;
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::string failure;

    bool finished() {
      std::lock_guard lock(mutex);
      return done;
    }
    void end(std::string text) {
      std::lock_guard lock(mutex);
      failure = std::move(text);
      done = true;
      changed.notify_all();
    }
    // Errors: the wait is interrupted (Ctrl-C).
    void wait() {
      BlockingScope unlocked;
      std::unique_lock lock(mutex);
      while (!changed.wait_for(lock, kSlice, [&] { return done; })) {
        lock.unlock();
        if (auto poll = blocking_hooks().poll) poll();
        lock.lock();
      }
    }
  };

  fs::path folder;
  CheckpointerOptions options;
  std::optional<comm::ContextHandoff> handoff;  // the rank of the thread that writes
  std::unique_ptr<UnderWay> under_way;
  std::optional<int64_t> continues_from;  // a step that was requested, until the next save
  pid_t process = ::getpid();             // a fork has no thread to wait for

  fs::path path(int64_t step) const { return folder / step_name(step); }
  bool busy() const { return under_way && !under_way->finished(); }
  void write(int64_t step, const FolderState& state) const;
  void start(int64_t step, FolderState state);
  std::string finish();
};

// On the rank's own thread or on its second one.
void Checkpointer::Impl::write(int64_t step, const FolderState& state) const {
  auto on_first = [&](auto&& io) {
    together("save", [&] {
      if (Context::current().rank() == 0) run_io(SIZE_MAX, io);
    });
  };
  on_first([&] {
    collect(folder);
    // Saves that were interrupted between their index and the removal below must not add up.
    const auto kept = complete_steps(folder);
    if (options.keep && !kept.empty()) remove_oldest(folder, *options.keep, kept.back());
  });
  write_folder(state, path(step));
  if (options.keep) on_first([&] { remove_oldest(folder, *options.keep, step); });
}

void Checkpointer::Impl::start(int64_t step, FolderState state) {
  under_way = std::make_unique<UnderWay>();
  under_way->step = step;
  auto job = [this, step, under_way = under_way.get(), state = std::move(state)]() mutable {
    std::string failure;
    try {
      auto scope = handoff->enter();
      write(step, state);
    } catch (const std::exception& e) {
      failure = e.what();
    } catch (...) {
      failure = "an error of an unknown kind";
    }
    state = {};
    under_way->end(std::move(failure));
  };
  try {
    under_way->thread = std::thread([job = std::move(job)]() mutable {
      leave_host_language();
      set_num_threads(1);
      job();
    });
  } catch (const std::system_error& e) {
    under_way.reset();
    fail_runtime("Checkpointer: cannot start a thread for an asynchronous save: {}.", e.what());
  }
}

// Why the last save failed; empty: it did not. It is waited for.
std::string Checkpointer::Impl::finish() {
  if (!under_way) return "";
  if (::getpid() != process) return "this process is a fork of the one that saves. Make a new Checkpointer here.";
  under_way->wait();
  under_way->thread.join();
  auto ended = std::move(under_way);
  if (ended->failure.empty()) return "";
  return fmt::format("the checkpoint of step {} was not saved: {} Older checkpoints are as they were.", ended->step,
                     ended->failure);
}

Checkpointer::Checkpointer(const FilePath& folder, const CheckpointerOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder.string();
  impl_->options = options;
  if (impl_->folder.empty()) fail_value("Checkpointer: the folder's path is empty.");
  if (options.keep && *options.keep < 1)
    fail_value("Checkpointer: keep is {}; it must be 1 or more, or nothing to keep all.", *options.keep);
  const auto all = results_together("Checkpointer", [&] {
    const std::string text =
        fmt::format("keep {}, asynchronous {}, while_saving {}", options.keep ? std::to_string(*options.keep) : "all",
                    options.asynchronous, options.while_saving == WhileSaving::kSkip ? "skip" : "wait");
    if (Context::current().rank() != 0) return text;
    std::error_code failed;
    fs::create_directories(impl_->folder, failed);
    if (failed || !fs::is_directory(impl_->folder, failed))
      fail_runtime("cannot create the folder {}: {}.", impl_->folder.string(),
                   failed ? failed.message() : "something else is there");
    run_io(SIZE_MAX, [&] {
      data::sync_folder(impl_->folder.parent_path());
      collect(impl_->folder);
      collect_inside(impl_->folder);
    });
    return text;
  });
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      fail_value("Checkpointer: the ranks have different options: rank 0 {}; rank {} {}. Pass the same on every rank.",
                 all[0], r, all[r]);
  if (options.asynchronous) impl_->handoff.emplace();
}

Checkpointer::~Checkpointer() {
  if (!impl_ || !impl_->under_way) return;
  auto& under_way = *impl_->under_way;
  if (::getpid() != impl_->process) {
    under_way.thread.detach();
    return;
  }
  {
    BlockingScope unlocked;
    under_way.thread.join();
  }
  if (!under_way.failure.empty())
    log::warn(
        fmt::format("Checkpointer: the checkpoint of step {} was not saved: {}", under_way.step, under_way.failure));
}

bool Checkpointer::save(int64_t step, const Value& value, const Value& own) {
  using nlohmann::json;
  NoGradGuard guard;
  Flat flat;
  const auto all = results_together("save", [&] {
    if (step < 0) fail_value("Checkpointer: step is {}; it must not be negative.", step);
    flat = flatten(value);
    order_for_file(flat.tensors);
    std::string text = own_text(own), failure;
    const bool busy = impl_->options.while_saving == WhileSaving::kSkip && impl_->busy();
    if (!busy) run_io(SIZE_MAX, [&] { failure = impl_->finish(); });
    return json{{"busy", busy}, {"failure", failure}, {"own", text}}.dump(-1, ' ', false,
                                                                          json::error_handler_t::replace);
  });
  std::vector<json> said;
  for (auto& text : all) said.push_back(json::parse(text));
  for (size_t r = 0; r < said.size(); ++r)
    if (const std::string failure = said[r]["failure"]; !failure.empty()) fail_runtime("Checkpointer: {}", failure);
  if (std::any_of(said.begin(), said.end(), [](auto& s) { return s["busy"].template get<bool>(); })) return false;
  check_alike(flat.tensors, "to the folder " + path(step));
  if (auto from = impl_->continues_from) {
    together("save", [&] {
      if (Context::current().rank() == 0) run_io(SIZE_MAX, [&] { set_aside_later(impl_->folder, *from); });
    });
    impl_->continues_from.reset();
  }
  FolderState state = folder_state(std::move(flat));
  for (auto& s : said) state.own.push_back(s["own"].get<std::string>());
  if (!impl_->options.asynchronous) {
    try {
      impl_->write(step, state);
    } catch (const Error& e) {
      throw Error(e.kind(),
                  fmt::format("Checkpointer: the checkpoint of step {} was not saved: {} Older checkpoints "
                              "are as they were.",
                              step, e.what()));
    }
    return true;
  }
  together("save", [&] { copy_own_parts(state); });
  impl_->start(step, std::move(state));
  return true;
}

void Checkpointer::wait() {
  if (std::string failure = impl_->finish(); !failure.empty()) fail_runtime("Checkpointer: {}", failure);
}

std::vector<int64_t> Checkpointer::steps() const { return complete_steps(impl_->folder); }

std::optional<int64_t> Checkpointer::latest() const {
  const auto all = steps();
  return all.empty() ? std::nullopt : std::optional(all.back());
}

std::optional<Checkpoint> Checkpointer::load(std::optional<int64_t> step, const LoadOptions& options) {
  if (options.global_src_rank)
    fail_value("Checkpointer: each rank reads its own part; global_src_rank is for holon::load(). Give a placement, or "
               "nothing.");
  for (int i = 1;; ++i) {
    // Rank 0 looks, since what ranks on other hosts see of a folder may be older.
    const std::string wanted = step ? std::to_string(*step) : "latest";
    auto answers = results_together("load", [&] {
      std::string failure;
      run_io(SIZE_MAX, [&] { failure = impl_->finish(); });
      if (!failure.empty()) fail_runtime("Checkpointer: {}", failure);
      if (Context::current().rank() != 0) return wanted;
      const auto known = steps();
      if (step && !std::binary_search(known.begin(), known.end(), *step))
        fail_value("Checkpointer: there is no checkpoint of step {} in {}; there are {}.", *step,
                   impl_->folder.string(), known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
      return fmt::format("{} {}", wanted, step ? wanted : known.empty() ? "" : std::to_string(known.back()));
    });
    const size_t end = answers[0].find(' ');
    const std::string answer = answers[0].substr(end + 1);
    answers[0].resize(end);
    for (size_t r = 1; r < answers.size(); ++r)
      if (answers[r] != answers[0])
        fail_value("Checkpointer: rank 0 loads step {}, rank {} step {}. Pass the same step on every rank.", answers[0],
                   r, answers[r]);
    if (answer.empty()) return std::nullopt;
    Checkpoint out;
    out.step = std::stoll(answer);
    std::exception_ptr failed;
    try {
      Loaded loaded = load_folder(path(out.step), options);
      out.value = std::move(loaded.value);
      read_own(loaded.own, path(out.step), out);
      impl_->continues_from = step;
      return out;
    } catch (const Error& e) {
      if (step || i == kMostTries) throw;
      failed = std::current_exception();
    }
    // Another program may have removed it meanwhile, as there were newer ones.
    const auto gone = results_together("load", [&]() -> std::string {
      return Context::current().rank() == 0 && !complete(path(out.step)) ? "gone" : "";
    });
    if (gone[0].empty()) std::rethrow_exception(failed);
  }
}

std::string Checkpointer::path(int64_t step) const { return impl_->path(step).string(); }

}  // namespace holon::checkpoint
