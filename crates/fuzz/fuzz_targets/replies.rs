//! Any bytes in place of replies.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| redisson_lock::test_util::check_reply_path(input));
