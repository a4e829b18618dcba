// Which sanitizer a test is built with, by GCC or clang.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOLON_THREAD_SANITIZER
#endif
#if __has_feature(address_sanitizer)
#define HOLON_ADDRESS_SANITIZER
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define HOLON_THREAD_SANITIZER
#endif
#ifdef __SANITIZE_ADDRESS__
#define HOLON_ADDRESS_SANITIZER
#endif
