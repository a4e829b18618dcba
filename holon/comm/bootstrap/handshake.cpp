#include "holon/comm/bootstrap/handshake.h"

#include <algorithm>

#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/crypto_verify_32.h>
#include <sys/random.h>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

namespace {

constexpr char kHello[] = "HOLONc02", kChallenge[] = "HOLONs02";
constexpr size_t kMagic = 8, kNumber = 32, kProof = crypto_auth_hmacsha256_BYTES;
static_assert(kProof == crypto_verify_32_BYTES);

bool same(const std::string& a, const std::string& b) {
  return crypto_verify_32(reinterpret_cast<const unsigned char*>(a.data()),
                          reinterpret_cast<const unsigned char*>(b.data())) == 0;
}

}  // namespace

std::string random_bytes(size_t n) {
  std::string bytes(n, '\0');
  for (size_t have = 0; have < n;) {
    ssize_t got = getrandom(bytes.data() + have, n - have, 0);
    if (got < 0 && errno != EINTR) fail_runtime("cannot read random numbers from the system: {}.", strerror(errno));
    if (got > 0) have += to_size(got);
  }
  return bytes;
}

std::string random_token() {
  std::string text;
  for (char c : random_bytes(16)) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

Handshake::Handshake(Side side, std::string token, std::string purpose, uint32_t from)
    : side_(side), token_(std::move(token)), purpose_(std::move(purpose)), from_(from), mine_(random_bytes(kNumber)) {}

std::string Handshake::begin() {
  std::string hello(kHello, kMagic);
  put_u32(hello, from_);
  return hello + mine_;
}

size_t Handshake::wanted() const {
  if (state_ != State::kGoesOn) return 0;
  size_t size;
  if (side_ == Side::kListens)
    size = step_ == 0 ? kMagic + 4 + kNumber : kProof;
  else
    size = step_ == 0 ? kMagic + kNumber : in_.empty() ? 1 : 1 + kProof;
  return size - in_.size();
}

// Differs between the sides, so that nobody's own proof can be sent back to him.
std::string Handshake::proof(const char* side) const {
  const bool connects = side_ == Side::kConnects;
  std::string text;
  for (const std::string& part :
       {std::string(side), purpose_, connects ? mine_ : theirs_, connects ? theirs_ : mine_}) {
    put_u32(text, static_cast<uint32_t>(part.size()));
    text += part;
  }
  put_u32(text, from_);
  // As keys of HMAC, a token and the same with zeros after it are one.
  put_u32(text, static_cast<uint32_t>(token_.size()));
  std::string result(kProof, '\0');
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(token_.data()), token_.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(result.data()));
  return result;
}

Handshake::State Handshake::take(const char* data, size_t size, std::string* reply) {
  while (size && state_ == State::kGoesOn) {
    const size_t n = std::min(size, wanted());
    in_.append(data, n);
    data += n, size -= n;
    const bool listens = side_ == Side::kListens;
    if (step_ == 0) {
      const char* magic = listens ? kHello : kChallenge;
      if (in_.compare(0, kMagic, magic, std::min(in_.size(), kMagic)) != 0) return state_ = State::kStranger;
    }
    if (!listens && step_ == 1 && in_[0] != 1) return state_ = in_[0] == 0 ? State::kRefused : State::kStranger;
    if (wanted() > 0) continue;
    if (step_ == 0) {
      if (listens) {
        from_ = get_u32(in_.data() + kMagic);
        theirs_ = in_.substr(kMagic + 4);
        *reply += kChallenge + mine_;
      } else {
        theirs_ = in_.substr(kMagic);
        *reply += proof("connects");
      }
    } else if (listens) {
      const bool knows = same(in_, proof("connects"));
      *reply += knows ? '\1' + proof("listens") : std::string(1, '\0');
      state_ = knows ? State::kDone : State::kRefused;
    } else {
      state_ = same(in_.substr(1), proof("listens")) ? State::kDone : State::kRefused;
    }
    in_.clear();
    ++step_;
  }
  return state_;
}

}  // namespace holon::comm
