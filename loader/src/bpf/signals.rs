//! Signals of a thread that loads programs.

use std::marker::PhantomData;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, SigmaskHow};

/// Blocks every signal for the calling thread, and for threads that it starts, while this lives.
///
/// The kernel gives up a verification with `EAGAIN` once the thread has a signal to handle
/// (`do_check()` in kernel/bpf/verifier.c), such as the end of a child process. Signals of the
/// process go to other threads, or wait.
#[derive(Debug)]
pub struct BlockedSignals {
    before: SigSet,
    /// The mask belongs to a thread.
    of_thread: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks the signals.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> Result<Self> {
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        Ok(Self {
            before: before.context("cannot block signals")?,
            of_thread: PhantomData,
        })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // The mask is one that the kernel gave, and it takes that.
        let _restored = self.before.thread_set_mask();
    }
}
