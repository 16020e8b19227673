//! `docs/openapi.json` equals the description of the handlers. After a change of the API, run
//! `UPDATE_GOLDEN=1 cargo nextest run -p vgpud --test openapi` and check the difference.

use std::path::Path;

#[test]
fn the_committed_description_is_the_handlers() {
    let made = vgpud::api::openapi_json().expect("JSON");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    vgpu_golden::assert_golden(file, &made);
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
