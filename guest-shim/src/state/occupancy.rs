//! Stores the host's answers to queries about the occupancy of functions, because libraries repeat
//! the same query before each launch.

use std::collections::HashMap;
use std::sync::Mutex;

use vgpu_proto::call::Cluster;

use crate::{Cu, lock};

/// Number of answers that are stored per function. Enough for all block sizes in steps of a warp,
/// with some sizes of shared memory.
const MOST: usize = 256;

/// A query about a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// Number of blocks with `threads` threads and `shared` bytes of dynamic shared memory that fit
    /// on a multiprocessor at once.
    Blocks {
        threads: i32,
        shared: u64,
        flags: u32,
    },
    /// Bytes of dynamic shared memory that each of `blocks` blocks can use.
    Shared { blocks: i32, threads: i32 },
    /// Clusters on the device.
    Clusters(Clusters),
}

/// A launch whose clusters are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Clusters {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) cluster: Cluster,
    /// Asks for the largest cluster instead of the number of clusters.
    pub(crate) largest: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// Number of changes of settings. A change invalidates earlier answers.
    changes: u64,
    answers: HashMap<Question, u64>,
}

/// The answers about a function.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Known>);

impl Answers {
    /// The stored answer, or the answer of `ask`.
    ///
    /// # Errors
    /// The errors of `ask`, which are not stored.
    pub(crate) fn of(&self, question: Question, ask: impl FnOnce() -> Cu<u64>) -> Cu<u64> {
        let changes = {
            let known = lock(&self.0);
            if let Some(answer) = known.answers.get(&question) {
                return Ok(*answer);
            }
            known.changes
        };
        let answer = ask()?;
        let mut known = lock(&self.0);
        // If the number differs, another thread changed a setting meanwhile, and the answer may be
        // from before the change.
        if known.changes == changes {
            if known.answers.len() >= MOST {
                known.answers.clear();
            }
            known.answers.insert(question, answer);
        }
        Ok(answer)
    }

    /// Drops all answers after a setting was changed on the host.
    pub(crate) fn forget(&self) {
        let mut known = lock(&self.0);
        known.changes += 1;
        known.answers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_cuda_abi::CuResult;

    fn blocks(threads: i32) -> Question {
        Question::Blocks {
            threads,
            shared: 0,
            flags: 0,
        }
    }

    #[test]
    fn an_answer_is_kept_until_a_setting_changes() {
        let answers = Answers::default();
        assert_eq!(
            answers.of(blocks(32), || Err(CuResult::INVALID_VALUE)),
            Err(CuResult::INVALID_VALUE)
        );
        assert_eq!(answers.of(blocks(32), || Ok(7)), Ok(7));
        assert_eq!(answers.of(blocks(32), || Ok(8)), Ok(7));
        let other = Question::Shared {
            blocks: 32,
            threads: 0,
        };
        assert_eq!(answers.of(other, || Ok(9)), Ok(9));
        answers.forget();
        assert_eq!(answers.of(blocks(32), || Ok(8)), Ok(8));
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let answers = Answers::default();
        let asked = answers.of(blocks(32), || {
            answers.forget();
            Ok(7)
        });
        assert_eq!(asked, Ok(7));
        assert_eq!(answers.of(blocks(32), || Ok(8)), Ok(8));
    }

    #[test]
    fn answers_are_bounded() {
        let answers = Answers::default();
        for threads in 0..10 * MOST as i32 {
            assert_eq!(answers.of(blocks(threads), || Ok(1)), Ok(1));
            assert!(lock(&answers.0).answers.len() <= MOST);
        }
    }
}
