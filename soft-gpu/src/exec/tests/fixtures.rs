//! Every fixture that is compiled from our CUDA sources loads.

use super::Bench;

#[test]
fn all_fixtures_load() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut seen = 0;
    for dir in [root.clone(), root.join("demo"), root.join("triton")] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "ptx") {
                let text = std::fs::read_to_string(&path).unwrap();
                println!("{}", path.display());
                let (p, _) = Bench::new().load(&text);
                assert!(p.kernels().count() > 0, "{}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 10, "only {seen} fixtures found");
}
