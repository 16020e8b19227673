//! `vgpu-pages DIR`: writes the manual pages (`DIR/man`) and the completions of bash, zsh and fish
//! (`DIR/bash`, `DIR/zsh`, `DIR/fish`) of the installed programs, from their command lines.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Arg, Command, CommandFactory};
use clap_complete::{Generator, Shell};
use clap_mangen::Man;

/// The documented programs, each with the section of its manual page.
fn programs() -> [(Command, &'static str); 4] {
    [
        (vgpu_admin::command_line(), "1"),
        (vgpud::app::Arguments::command(), "8"),
        (vgpu_guest::command_line(), "1"),
        (vgpu_sim::arguments::Arguments::command(), "1"),
    ]
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(dir), None) => write(Path::new(&dir)),
        _ => bail!("Usage: vgpu-pages DIR"),
    }
}

fn write(dir: &Path) -> anyhow::Result<()> {
    let shells = [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ];
    let man = folder(dir, "man")?;
    for (mut command, section) in programs() {
        let name = command.get_name().to_owned();
        for (shell, of) in shells {
            let path = folder(dir, of)?.join(shell.file_name(&name));
            std::fs::write(&path, completion(shell, &command, &name)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        command = command.disable_help_subcommand(true);
        command.build();
        write_pages(&command, section, &man)
            .with_context(|| format!("cannot write the manual of {name}"))?;
    }
    Ok(())
}

fn completion(shell: Shell, command: &Command, name: &str) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(command), name, &mut text);
    let text = String::from_utf8(text)?;
    // clap_complete 4.6.11 writes a program's name with a hyphen in two ways, so that bash
    // completes nothing behind a command.
    Ok(match shell {
        Shell::Bash => text.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__")),
        _ => text,
    })
}

fn folder(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = dir.join(name);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// The page of a command, and those of its commands.
fn write_pages(command: &Command, section: &str, dir: &Path) -> std::io::Result<()> {
    let page = Man::new(command.clone())
        .section(section)
        .source(concat!("vGPU ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = with_sections(&String::from_utf8_lossy(&text));
    std::fs::write(dir.join(page.get_filename()), text)?;
    shown(command).try_for_each(|command| write_pages(command, section, dir))
}

/// The page with a section for each part of the text at the end of a help text. clap_mangen puts
/// the whole text into a section EXTRA.
fn with_sections(page: &str) -> String {
    const HEADINGS: [(&str, &str); 5] = [
        ("Examples:", "EXAMPLES"),
        ("Example:", "EXAMPLES"),
        ("Exit codes:", "EXIT STATUS"),
        ("Exit status:", "EXIT STATUS"),
        ("Signals:", "SIGNALS"),
    ];
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let headed = |(words, heading): &(&str, &'static str)| {
            line.strip_prefix(words)
                .map(|rest| (*heading, rest.trim_start()))
        };
        match HEADINGS.iter().find_map(headed) {
            Some((heading, "")) => text.push_str(&format!(".SH {heading}\n")),
            Some((heading, rest)) => text.push_str(&format!(".SH \"{heading}\"\n{rest}\n")),
            None => text.push_str(&format!("{line}\n")),
        }
    }
    text.replace("\n.SH EXTRA\n.SH ", "\n.SH ")
}

/// The command without hidden options and commands, which clap_complete would offer.
fn visible(command: &Command) -> Command {
    let mut seen = Command::new(command.get_name().to_owned());
    if let Some(about) = command.get_about() {
        seen = seen.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        seen = seen.version(version.to_owned());
    }
    let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
    seen.args(options.map(alone))
        .subcommands(shown(command).map(visible))
}

/// The option without its relations to others, which may be hidden.
fn alone(arg: &Arg) -> Arg {
    let mut seen = Arg::new(arg.get_id().clone())
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone())
        .global(arg.is_global_set());
    if let Some(short) = arg.get_short() {
        seen = seen.short(short);
    }
    if let Some(long) = arg.get_long() {
        seen = seen.long(long.to_owned());
    }
    if let Some(help) = arg.get_help() {
        seen = seen.help(help.clone());
    }
    if let Some(names) = arg.get_value_names() {
        seen = seen.value_names(names.to_vec());
    }
    match arg.get_num_args() {
        Some(range) => seen.num_args(range),
        None => seen,
    }
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|each| !each.is_hide_set())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages and options of the help texts that are missing in `dir`.
    fn lacking(dir: &Path) -> Vec<String> {
        let mut lacking = Vec::new();
        for (mut command, section) in programs() {
            command.build();
            compare(&command, section, &dir.join("man"), &mut lacking);
        }
        lacking
    }

    fn compare(command: &Command, section: &str, dir: &Path, lacking: &mut Vec<String>) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        match std::fs::read_to_string(dir.join(format!("{name}.{section}"))) {
            Err(_) => lacking.push(format!("page {name}")),
            Ok(page) => {
                let page = page.replace("\\-", "-");
                let help = command.clone().render_long_help().to_string();
                let options = help.lines().map(str::trim).filter(|l| l.starts_with('-'));
                let long = options.flat_map(str::split_whitespace);
                for option in long.filter(|word| word.starts_with("--")) {
                    let option = option.split(['=', '[', ',']).next().unwrap_or(option);
                    if !page.contains(option) {
                        lacking.push(format!("{option} in the page {name}"));
                    }
                }
            }
        }
        for each in shown(command).filter(|each| each.get_name() != "help") {
            compare(each, section, dir, lacking);
        }
    }

    #[test]
    fn every_command_has_a_page_with_all_its_options() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        assert_eq!(lacking(dir.path()), Vec::<String>::new());
        let page = dir.path().join("man/vgpu-admin-pool-set.1");
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(
            text.contains("\\-\\-policy"),
            "an option of a nested command"
        );
        assert!(text.contains("\n.SH EXAMPLES\n  vgpu"), "{text}");
        let vgpud = std::fs::read_to_string(dir.path().join("man/vgpud.8")).unwrap();
        for section in ["\n.SH \"SIGNALS\"\nSIGHUP", "\n.SH \"EXIT STATUS\"\n0 "] {
            assert!(vgpud.contains(section), "{vgpud}");
        }
        for file in std::fs::read_dir(dir.path().join("man")).unwrap() {
            let page = std::fs::read_to_string(file.unwrap().path()).unwrap();
            assert!(!page.contains("EXTRA"), "{page}");
        }
        // The comparison notices a missing option and a missing page.
        std::fs::write(&page, text.replace("\\-\\-policy", "")).unwrap();
        assert_eq!(
            lacking(dir.path()),
            ["--policy in the page vgpu-admin-pool-set"]
        );
        std::fs::remove_file(&page).unwrap();
        assert_eq!(lacking(dir.path()), ["page vgpu-admin-pool-set"]);
        assert!(
            !dir.path().join("man/vgpu-guest-attempt.1").exists(),
            "hidden"
        );
    }

    #[test]
    fn bash_knows_the_options_behind_every_command() {
        for (command, _) in programs() {
            let text = completion(Shell::Bash, &command, command.get_name()).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for line in &lines {
                if let Some(state) = line
                    .strip_prefix("cmd=\"")
                    .and_then(|l| l.strip_suffix('"'))
                {
                    let case = format!("{state})");
                    assert!(
                        state.is_empty() || lines.contains(&&*case),
                        "no case {case}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_shell_completes_every_program() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        for (command, _) in programs() {
            let name = command.get_name();
            for file in [
                format!("bash/{name}.bash"),
                format!("zsh/_{name}"),
                format!("fish/{name}.fish"),
            ] {
                let text = std::fs::read_to_string(dir.path().join(&file)).expect(&file);
                for hidden in ["attempt", "first-failure", "gpu-id"] {
                    assert!(!text.contains(hidden), "{file}: {hidden}");
                }
                assert!(text.contains("version"), "{file}");
                for each in shown(&command) {
                    assert!(
                        text.contains(each.get_name()),
                        "{file}: {}",
                        each.get_name()
                    );
                }
            }
        }
    }
}
