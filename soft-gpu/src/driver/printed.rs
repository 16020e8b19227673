//! Device `printf`: the text that a launch keeps, and its way to the program's standard output.
//!
//! A card has one buffer of CU_LIMIT_PRINTF_FIFO_SIZE bytes per context, and new output overwrites
//! the oldest. Here each launch has its own buffer of that size, so that the lost output does not
//! depend on the time at which kernels run.

use std::collections::VecDeque;

use vgpu_cudart::printed::{MOST_WAITING, Printed};

/// The text of kernels that have ended. Each call of the driver API writes this text before it
/// returns.
pub static PRINTED: Printed = Printed::new();

/// The last output of one launch, limited to a number of bytes.
#[derive(Debug, Default)]
pub struct Fifo {
    text: VecDeque<u8>,
    /// Number of bytes of each output in `text`, oldest first. An output is the text of one warp at
    /// one `printf`.
    outputs: VecDeque<usize>,
    most: usize,
}

impl Fifo {
    /// A buffer of `most` bytes, but at most [`MOST_WAITING`].
    pub fn new(most: u64) -> Fifo {
        let most = usize::try_from(most)
            .unwrap_or(usize::MAX)
            .min(MOST_WAITING);
        Fifo {
            most,
            ..Fifo::default()
        }
    }

    /// Adds the output of a warp at one `printf`. If there is too little room, the oldest outputs
    /// are dropped. Of an output longer than the buffer, only the last whole lines are kept.
    pub fn add(&mut self, output: &[u8]) {
        let excess = output.len().saturating_sub(self.most);
        let lines = excess.checked_sub(1).map_or(0, |cut| {
            let line = output[cut..].iter().position(|b| *b == b'\n');
            line.map_or(output.len(), |n| cut + n + 1)
        });
        let output = &output[lines..];
        if output.is_empty() {
            return;
        }
        while self.text.len() + output.len() > self.most {
            let oldest = self.outputs.pop_front().unwrap_or(self.text.len());
            self.text.drain(..oldest);
        }
        self.text.extend(output);
        self.outputs.push_back(output.len());
    }

    /// Passes the text to [`PRINTED`] when the kernel has ended.
    pub fn ends(self) {
        if !self.text.is_empty() {
            PRINTED.add(&Vec::from(self.text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_output_overwrites_the_oldest_as_a_whole() {
        let mut fifo = Fifo::new(10);
        for output in ["one ", "two ", "three ", "", "longer than all", "4"] {
            fifo.add(output.as_bytes());
        }
        assert_eq!(Vec::from(fifo.text.clone()), b"three 4");
        assert_eq!(fifo.outputs, [6, 1]);
        fifo.add(b"of 32 threads\nfour\nfive\n");
        assert_eq!(Vec::from(fifo.text.clone()), b"four\nfive\n");
        let mut exact = Fifo::new(5);
        exact.add(b"1\n2345\n");
        assert_eq!(exact.text, b"2345\n");
        let mut none = Fifo::new(0);
        none.add(b"a");
        assert!(none.text.is_empty());
        assert_eq!(Fifo::new(u64::MAX).most, MOST_WAITING);
    }
}
