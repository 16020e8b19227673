//! How many blocks of a function a multiprocessor holds, as the host has said before: libraries ask the same before
//! each launch.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::{Cu, lock};

/// Most answers that are kept of a function: all block sizes in steps of a warp, with some sizes of shared memory.
const MOST: usize = 256;

/// What is asked about a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// Blocks of so many threads and bytes of dynamic shared memory.
    Blocks {
        threads: i32,
        shared: u64,
        flags: u32,
    },
    /// Bytes of dynamic shared memory that each of so many blocks can have.
    Shared { blocks: i32, threads: i32 },
}

#[derive(Debug, Default)]
struct Known {
    /// Counts what made earlier answers void.
    changes: u64,
    answers: HashMap<Question, u64>,
}

/// The answers about one function.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Known>);

impl Answers {
    /// The answer that is known, or that `ask` gets.
    ///
    /// # Errors
    /// Those of `ask`, which are not kept.
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
        // Else another thread has changed a setting meanwhile, and this may be the answer from before.
        if known.changes == changes {
            if known.answers.len() >= MOST {
                known.answers.clear();
            }
            known.answers.insert(question, answer);
        }
        Ok(answer)
    }

    /// A setting has changed that answers depend on; called after the host has been told.
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
