// A model's configuration as it is in a checkpoint's config.json.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/checkpoint/core/value.h"

namespace holon::models {

// The members of a JSON object, whatever they are: those that a model does not know are kept for save_pretrained().
// A member that is null counts as one that is not there. Errors of what reads a member (ValueError), naming the file
// and the member: it is not there, or of another type.
class Config {
 public:
  Config() = default;
  // Errors (ValueError): something other than a JSON object. source: for messages.
  explicit Config(std::string_view json, std::string source = "the configuration");
  // That of DIR/config.json. Errors (RuntimeError): it cannot be read.
  static Config read(const FilePath& folder) { return read(folder, "config.json"); }
  // That of another file; of one that may be missing, an empty one then.
  static Config read(const FilePath& folder, const char* file, bool may_be_missing = false);

  // Whether a member is there; whether it is there, perhaps as null.
  bool has(std::string_view key) const;
  bool lists(std::string_view key) const;

  // The value of a member as it is; nullptr where it is not there.
  const checkpoint::Value* find(std::string_view key) const;
  // The value of a member, or the other one where it is not there.
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  double number(std::string_view key) const;
  double number(std::string_view key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool flag(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view otherwise) const;
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  bool is_list(std::string_view key) const;
  // An object within; an empty one if there is none.
  Config object(std::string_view key) const;

  // The number of members.
  int64_t size() const { return static_cast<int64_t>(members_.size()); }

  // Sets a member, in place of one of the same name.
  void set(std::string_view key, checkpoint::Value value);
  // As JSON of several lines.
  std::string json() const;
  // Writes that into a file of a folder. op: for messages. Errors (RuntimeError): it cannot be written.
  void write(const char* op, const FilePath& folder, const char* file) const;
  // Where it is from, for messages.
  const std::string& source() const { return source_; }

 private:
  const checkpoint::Value& member(std::string_view key) const;
  [[noreturn]] void wrong(std::string_view key, const char* wanted) const;
  checkpoint::Value::Dict members_;
  std::string source_ = "the configuration";
};

// Errors (ValueError): a size that is below 1, by its name.
void check_positive(const Config& config, std::initializer_list<std::pair<const char*, int64_t>> sizes);
// The number of classes: of "id2label", or "num_labels"; 2 if there is neither. Errors (ValueError): fewer than 2, and
// what asks for another loss than cross-entropy.
int64_t label_count(const Config& config);

}  // namespace holon::models
