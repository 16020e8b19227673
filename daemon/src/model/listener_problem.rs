//! Problems with the sockets of VMs: vgpud does not listen on a socket, or cannot see whether the
//! socket is still in its place.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::counted;

/// Problems that are reported in words. Further problems are only counted.
const MOST_TOLD: usize = 8;
/// Sockets of one problem that are named. Further sockets are only counted.
const MOST_NAMED: usize = 3;

/// A problem with a socket of a VM: vgpud does not listen on the socket, or cannot see whether the
/// socket is still in its place. Neither text ends with a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerProblem {
    /// The VM.
    pub vm_id: u32,
    /// The socket.
    pub path: PathBuf,
    /// Whether vgpud listens on the socket. If so, vgpud cannot see whether the socket is in its
    /// place.
    pub listens: bool,
    /// The reason.
    pub problem: String,
    /// The remedy.
    pub hint: String,
}

impl ListenerProblem {
    /// The problem and its reason as a sentence without a full stop.
    #[must_use]
    pub fn sentence(&self) -> String {
        let socket = format!("{} (VM {})", self.path.display(), self.vm_id);
        self.sentence_of(&socket, "the socket file still exists there")
    }

    fn sentence_of(&self, sockets: &str, in_place: &str) -> String {
        let problem = &self.problem;
        match self.listens {
            false => format!("vgpud does not listen on {sockets}: {problem}"),
            true => {
                format!("vgpud listens on {sockets} but cannot check whether {in_place}: {problem}")
            }
        }
    }

    /// Returns pairs of problem and remedy, as sentences. Sockets with the same problem and the
    /// same remedy share one pair.
    #[must_use]
    pub fn told(shut: &[ListenerProblem]) -> Vec<(String, String)> {
        let mut alike: BTreeMap<_, Vec<&ListenerProblem>> = BTreeMap::new();
        for problem in shut {
            let what = (problem.listens, &problem.problem, &problem.hint);
            alike.entry(what).or_default().push(problem);
        }
        let mut alike: Vec<_> = alike.into_values().collect();
        let rest = alike.split_off(alike.len().min(MOST_TOLD));
        let told = alike.into_iter().map(|problems| {
            let what = match &problems[..] {
                [problem] => problem.sentence(),
                problems => {
                    problems[0].sentence_of(&named(problems), "the socket files still exist there")
                }
            };
            (what, problems[0].hint.clone())
        });
        let mut told: Vec<_> = told.collect();
        let more: usize = rest.iter().map(Vec::len).sum();
        if more > 0 {
            let what = format!("something else is wrong with {}", counted(more, "socket"));
            told.push((what, "vgpud's log names them all".into()));
        }
        told
    }
}

/// For example `12 sockets (/x/1 of VM 1, /x/2 of VM 2, and 10 more)`.
fn named(problems: &[&ListenerProblem]) -> String {
    let name =
        |problem: &&ListenerProblem| format!("{} of VM {}", problem.path.display(), problem.vm_id);
    let mut names: Vec<String> = problems.iter().take(MOST_NAMED).map(name).collect();
    if problems.len() > names.len() {
        names.push(format!("and {} more", problems.len() - names.len()));
    }
    format!("{} sockets ({})", problems.len(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_many_sockets_is_reported_once() {
        let problem = |vm_id: u32, problem: &str| ListenerProblem {
            vm_id,
            path: format!("/x/{vm_id}").into(),
            listens: false,
            problem: problem.into(),
            hint: format!("Mend it: {problem}"),
        };
        let mut shut: Vec<_> = (1..=12)
            .map(|id| problem(id, "there is no group x"))
            .collect();
        shut.push(problem(13, "it is vgpud's own"));
        assert_eq!(
            ListenerProblem::told(&shut)
                .into_iter()
                .map(|(what, _)| what)
                .collect::<Vec<_>>(),
            [
                "vgpud does not listen on /x/13 (VM 13): it is vgpud's own",
                "vgpud does not listen on 12 sockets (/x/1 of VM 1, /x/2 of VM 2, /x/3 of VM 3, and 9 more): \
                 there is no group x",
            ]
        );
        let mut many: Vec<_> = (1..=20)
            .map(|id| problem(id, &format!("problem {id:02}")))
            .collect();
        many.push(problem(21, "problem 20"));
        let said = ListenerProblem::told(&many);
        assert_eq!(said.len(), MOST_TOLD + 1);
        assert!(said[MOST_TOLD].0.ends_with("13 sockets"), "{said:?}");
        // Problems with different remedies are reported separately.
        let mut other = problem(22, "problem 01");
        other.hint = "Another cure".into();
        let said = ListenerProblem::told(&[problem(1, "problem 01"), other]);
        assert_eq!(said.len(), 2, "{said:?}");
        let mut unseen = problem(23, "it is silent");
        unseen.listens = true;
        assert_eq!(
            unseen.sentence(),
            "vgpud listens on /x/23 (VM 23) but cannot check whether the socket file still exists there: it is silent"
        );
    }
}
