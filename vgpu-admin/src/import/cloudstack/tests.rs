use super::*;

const SHARES: &str = "first_cid = 100000\n[[profile]]\nname = 'vgpu-8g'\npool = 'A'\ncount = 2\n\
                      memory = '8GiB'\n[[profile]]\nname = 'vgpu-low'\npool = 'A'\ncount = 1\n";
const MACHINE: &str = "0123456789abcdef0123456789abcdef\n";

fn gpu(pci_address: Option<&str>) -> Gpu {
    let summary = json!({"count": 0, "p50_us": 0, "p95_us": 0, "p99_us": 0, "max_us": 0});
    serde_json::from_value(json!({
        "gpu_id": 0, "uuid": "GPU-1", "model": "NVIDIA H100", "memory_bytes": 80_u64 << 30,
        "pci_address": pci_address, "source": "nvml", "mig": [], "state": "ready",
        "health": {"ok": true, "problems": []}, "pools": ["A"], "first_seen_unix_ms": 0,
        "last_seen_unix_ms": 0, "sessions": 0, "busy_permille": 0, "handoffs": 0,
        "handoff": summary,
    }))
    .unwrap()
}

fn offered(discovered: &str, gpu: Gpu) -> Result<Value, String> {
    offered_of(SHARES, discovered, &[gpu])
}

fn offered_of(shares: &str, discovered: &str, gpus: &[Gpu]) -> Result<Value, String> {
    let host = Host {
        machine_id: MACHINE,
        pci: Path::new("/nonexistent"),
        gpus,
        vms: &[],
    };
    let text = Shares::read(shares).unwrap().offer(discovered, &host)?;
    Ok(serde_json::from_str(&text).unwrap())
}

#[test]
fn shares_are_offered_as_mediated_devices_of_their_gpu() {
    let discovered = r#"{"gpus": [{"pci_address": "65:00.0", "vendor_id": "10de",
        "device_id": "2330", "full_passthrough": {"enabled": 1, "used_by_vm": null},
        "vgpu_instances": [], "vf_instances": []},
        {"pci_address": "00:02.0", "full_passthrough": {"enabled": 1}, "vgpu_instances": []}]}"#;
    let answer = offered(discovered, gpu(Some("0000:65:00.0"))).unwrap();
    let ours = &answer["gpus"][0];
    assert_eq!(ours["full_passthrough"]["enabled"], 0, "vgpud has the GPU");
    assert_eq!(ours["device_id"], "2330");
    let instances = ours["vgpu_instances"].as_array().unwrap();
    let profiles: Vec<_> = instances
        .iter()
        .map(|i| i["profile_name"].as_str())
        .collect();
    assert_eq!(
        profiles,
        [Some("vgpu-8g"), Some("vgpu-8g"), Some("vgpu-low")]
    );
    assert_eq!(instances[0]["video_ram"], 8_192);
    assert_eq!(
        instances[0]["mdev_uuid"],
        "76677075-0123-4456-8789-0000000186a0"
    );
    let address = json!({"domain": "0x0000", "bus": "0x65", "slot": "0x00", "function": "0x0"});
    assert_eq!(instances[0]["libvirt_address"], address);
    assert_eq!(
        answer["gpus"][1]["full_passthrough"]["enabled"], 1,
        "not ours"
    );
}

#[test]
fn no_gpu_of_a_pool_is_offered_for_passthrough() {
    let entry = |address: &str| json!({"pci_address": address, "full_passthrough": {"enabled": 1}, "vgpu_instances": []});
    let mut odd = entry("67:00.0");
    odd["full_passthrough"] = json!("yes");
    let entries = [
        entry("65:00.0"),
        entry("0000:66:00.0"),
        odd,
        entry("68:00.0"),
    ];
    let discovered = json!({ "gpus": entries }).to_string();
    let pooled = ["0000:65:00.0", "0000:66:00.0", "0000:67:00.0"].map(|at| gpu(Some(at)));
    let mut free = gpu(Some("0000:68:00.0"));
    free.pools = Vec::new();
    let gpus: Vec<Gpu> = pooled.into_iter().chain([free]).collect();
    for (shares, instances) in [(SHARES, 3), ("", 0)] {
        let answer = offered_of(shares, &discovered, &gpus).unwrap();
        let entries = answer["gpus"].as_array().unwrap();
        let enabled: Vec<_> = entries
            .iter()
            .map(|entry| entry["full_passthrough"]["enabled"].as_u64())
            .collect();
        assert_eq!(enabled, [Some(0), Some(0), Some(0), Some(1)], "{answer}");
        let shares = entries[0]["vgpu_instances"].as_array().unwrap();
        assert_eq!(shares.len(), instances);
    }
}

#[test]
fn a_gpu_that_the_script_left_out_is_added() {
    let answer = offered(r#"{"gpus": []}"#, gpu(Some("0000:65:00.0"))).unwrap();
    assert_eq!(answer["gpus"][0]["pci_address"], "65:00.0");
    assert_eq!(
        answer["gpus"][0]["vgpu_instances"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[test]
fn what_cannot_be_offered_is_a_sentence() {
    let pci = || gpu(Some("0000:65:00.0"));
    assert!(offered("", pci()).unwrap_err().contains("no JSON"));
    assert!(offered("{}", pci()).unwrap_err().contains("no list"));
    let soft = offered(r#"{"gpus": []}"#, gpu(None)).unwrap_err();
    assert!(soft.contains("GPU 0 has no PCI address"), "{soft}");
    let mut other = pci();
    other.pools = vec!["B".into()];
    let none = offered(r#"{"gpus": []}"#, other).unwrap_err();
    assert!(none.contains("pool A serves none"), "{none}");
}

#[test]
fn a_configuration_that_makes_no_sense_is_a_sentence() {
    let wrong = |text: &str| Shares::read(text).unwrap_err();
    let low = wrong(&SHARES.replace("100000", "2"));
    assert!(low.contains("between 3 and 4294967292, not 2"), "{low}");
    let high = wrong(&SHARES.replace("100000", "4294967293"));
    assert!(high.contains("not 4294967293"), "{high}");
    assert!(Shares::read(&SHARES.replace("100000", "4294967292")).is_ok());
    assert!(wrong("fist_cid = 2").contains("fist_cid"));
    let twice = SHARES.replace("vgpu-low", "vgpu-8g");
    let same = wrong(&twice);
    assert!(
        same.contains("\"vgpu-8g\"") && same.contains("its own name"),
        "{same}"
    );
    assert!(wrong(&SHARES.replace("8GiB", "8 elephants")).contains("memory"));
    assert!(wrong(&SHARES.replace("count = 2", "count = 5000")).contains("5001 shares"));
}

#[test]
fn a_file_without_profiles_is_empty() {
    for empty in ["", "# nothing\n", "first_cid = 0", "profile = []"] {
        let shares = Shares::read(empty).unwrap();
        assert!(shares.profile(3).is_none() && shares.profile(0).is_none());
    }
}

#[test]
fn the_memory_of_a_share_is_a_limit_of_vgpud() {
    let memory = |text: &str| {
        let shares = Shares::read(&SHARES.replace("8GiB", text))?;
        Ok::<_, String>(shares.profile(100_000).unwrap().memory_bytes)
    };
    assert_eq!(memory("8GiB"), Ok(Limit::Value(8 << 30)));
    assert_eq!(memory("unlimited"), Ok(Limit::Unlimited));
    let zero = memory("0").unwrap_err();
    assert!(zero.contains("write \"unlimited\""), "{zero}");
    let much = memory("2048TiB").unwrap_err();
    assert!(much.contains("between 1B and 1024TiB"), "{much}");
}

const DOMAIN: &str = "<domain type='kvm'>\n<name>i-2-7-VM</name>\n<devices>\n\
<hostdev mode='subsystem' type='mdev' model='vfio-pci' display='off'>\n  <source>\n    \
<address uuid='76677075-0123-4456-8789-0000000186a0'/>\n  </source>\n</hostdev>\n\
<console type='pty'/>\n</devices>\n</domain>\n";

#[test]
fn the_share_becomes_a_vsock_device() {
    let text = transform(DOMAIN).unwrap();
    assert!(
        !text.contains("hostdev") && text.contains("<console type='pty'/>"),
        "{text}"
    );
    assert!(text.contains("<cid auto='no' address='100000'/>"), "{text}");
    assert_eq!(
        transform(&text).unwrap(),
        text,
        "a second transformation changes nothing"
    );
    let with_vsock = DOMAIN.replace("<console", "<vsock><cid auto='yes'/></vsock><console");
    assert_eq!(transform(&with_vsock).unwrap().matches("<vsock").count(), 1);
}

#[test]
fn a_vm_with_a_share_is_marked_once_in_its_metadata() {
    let mark = "<vgpu:share xmlns:vgpu='urn:vgpu:cloudstack'/>";
    let other = "<o:os xmlns:o='urn:o'/>";
    for metadata in [
        String::new(),
        "<metadata/>".into(),
        format!("<metadata>{other}</metadata>"),
        format!("<metadata>{mark}</metadata>"),
    ] {
        let text = DOMAIN.replace("<devices>", &format!("{metadata}<devices>"));
        assert_eq!(xml::domain(&text).unwrap().share, metadata.contains(mark));
        let text = transform(&text).unwrap();
        assert!(xml::domain(&text).unwrap().share, "{text}");
        let count = |what: &str| text.matches(what).count();
        assert_eq!(
            (count(mark), count("<metadata>"), count("</metadata>")),
            (1, 1, 1),
            "{text}"
        );
        assert_eq!(text.contains(other), metadata.contains(other));
    }
    // The name alone, another namespace, and another place are no mark.
    for wrong in [
        "<metadata><vgpu:share/></metadata>",
        "<metadata><vgpu:share xmlns:vgpu='urn:x'/></metadata>",
        "<metadata><a:b xmlns:a='urn:a'><share xmlns='urn:vgpu:cloudstack'/></a:b></metadata>",
        "<share xmlns='urn:vgpu:cloudstack'/>",
    ] {
        let text = DOMAIN.replace("<devices>", &format!("{wrong}<devices>"));
        assert!(!xml::domain(&text).unwrap().share, "{wrong}");
    }
}

#[test]
fn other_domains_are_left_as_they_are() {
    let nvidia = DOMAIN.replace("76677075-0123", "a1b2c3d4-5678");
    assert_eq!(transform(&nvidia).unwrap(), nvidia);
    let share = &DOMAIN[DOMAIN.find("<hostdev").unwrap()..DOMAIN.find("<console").unwrap()];
    let two = DOMAIN.replace("<console", &format!("{share}<console"));
    assert!(transform(&two).unwrap_err().contains("several shares"));
    assert!(transform("").is_err());
}
