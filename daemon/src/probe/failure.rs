//! Why a probe gave no answer, or why its check did not pass.

use crate::mediation::CheckFound;

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) found: CheckFound,
    pub(super) message: String,
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        let found = CheckFound::Failed;
        Failure { found, message }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.message
    }
}
