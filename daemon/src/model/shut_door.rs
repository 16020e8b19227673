//! Sockets of VMs on which vgpud should listen and does not.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Problems that are told before the rest is only counted.
const MOST_TOLD: usize = 8;
/// Sockets of one problem that are named before the rest is only counted.
const MOST_NAMED: usize = 3;

/// A socket of a VM on which vgpud should listen and does not. Neither text ends with a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutDoor {
    /// The VM.
    pub vm_id: u32,
    /// The socket.
    pub path: PathBuf,
    /// Why.
    pub problem: String,
    /// What cures it.
    pub hint: String,
}

impl ShutDoor {
    /// What and why, without a full stop.
    #[must_use]
    pub fn sentence(&self) -> String {
        let (path, vm_id, problem) = (self.path.display(), self.vm_id, &self.problem);
        format!("vgpud does not listen on {path} (VM {vm_id}): {problem}")
    }

    /// What is shut, as a sentence and its cure: each problem once, however many sockets have it.
    #[must_use]
    pub fn told(shut: &[ShutDoor]) -> Vec<(String, String)> {
        // By the problem alone: cures may name each socket's own directory.
        let mut alike: BTreeMap<&str, Vec<&ShutDoor>> = BTreeMap::new();
        for door in shut {
            alike.entry(&door.problem).or_default().push(door);
        }
        let mut alike: Vec<_> = alike.into_iter().collect();
        let rest = alike.split_off(alike.len().min(MOST_TOLD));
        let told = alike.into_iter().map(|(problem, doors)| {
            let hint = doors[0].hint.clone();
            match &doors[..] {
                [door] => (door.sentence(), hint),
                doors => {
                    let what = named(doors);
                    (format!("vgpud does not listen on {what}: {problem}"), hint)
                }
            }
        });
        let mut told: Vec<_> = told.collect();
        let more: usize = rest.iter().map(|(_, doors)| doors.len()).sum();
        if more > 0 {
            let what = match more {
                1 => "1 socket is shut for another reason".into(),
                n => format!("{n} sockets are shut for other reasons"),
            };
            told.push((what, "vgpud's log names them all".into()));
        }
        told
    }
}

/// `12 sockets (/x/1 of VM 1, /x/2 of VM 2, and 10 more)`.
fn named(doors: &[&ShutDoor]) -> String {
    let name = |door: &&ShutDoor| format!("{} of VM {}", door.path.display(), door.vm_id);
    let mut names: Vec<String> = doors.iter().take(MOST_NAMED).map(name).collect();
    if doors.len() > names.len() {
        names.push(format!("and {} more", doors.len() - names.len()));
    }
    format!("{} sockets ({})", doors.len(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_many_sockets_is_told_once() {
        let door = |vm_id: u32, problem: &str| ShutDoor {
            vm_id,
            path: format!("/x/{vm_id}").into(),
            problem: problem.into(),
            hint: format!("Mend /x/{vm_id}"),
        };
        let mut shut: Vec<_> = (1..=12).map(|id| door(id, "there is no group x")).collect();
        shut.push(door(13, "it is vgpud's own"));
        assert_eq!(
            ShutDoor::told(&shut)
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
            .map(|id| door(id, &format!("problem {id:02}")))
            .collect();
        many.push(door(21, "problem 20"));
        let said = ShutDoor::told(&many);
        assert_eq!(said.len(), MOST_TOLD + 1);
        assert!(said[MOST_TOLD].0.starts_with("13 sockets"), "{said:?}");
    }
}
