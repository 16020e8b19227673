//! `docs/openapi.json` says what the handlers do. After a change of the API:
//! `VGPU_UPDATE=1 cargo nextest run -p vgpud --test openapi`, and look at the difference.

use std::path::Path;

#[test]
fn the_committed_description_is_the_handlers() {
    let made = vgpud::api::openapi_json().expect("JSON");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    if std::env::var_os("VGPU_UPDATE").is_some() {
        std::fs::write(&file, &made).expect("written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == made,
        "docs/openapi.json differs from the handlers. If the change is meant: \
         `VGPU_UPDATE=1 cargo nextest run -p vgpud --test openapi`"
    );
}

#[test]
fn every_route_says_how_it_fails() {
    let document = serde_json::to_value(vgpud::api::openapi()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 20, "{}", paths.len());
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            let responses = operation["responses"].as_object().expect("responses");
            let open = ["/healthz", "/metrics", "/v1/openapi.json"].contains(&path.as_str());
            assert!(open || responses.len() > 1, "{method} {path}");
            assert!(
                operation["summary"].is_string(),
                "{method} {path} has no summary"
            );
        }
    }
}
