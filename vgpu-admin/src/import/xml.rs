//! libvirt's descriptions of VMs (domain XML).

use std::collections::BTreeMap;
use std::ops::Range;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// XML namespace of the mark that the transformer leaves in the metadata of a VM with a share.
pub(super) const SHARE_NAMESPACE: &str = "urn:vgpu:cloudstack";

/// Largest depth of an element.
const MAX_DEPTH: usize = 64;
/// Largest number of attributes of an element.
const MAX_ATTRIBUTES: usize = 64;

/// The parts of a domain that are read. Places are in bytes of the XML.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) vsock: Option<Vsock>,
    /// Mediated devices: the place of the element, and the UUID of the device.
    pub(super) mdevs: Vec<(Range<usize>, String)>,
    /// Places of vsock devices.
    pub(super) vsocks: Vec<Range<usize>>,
    /// Place of the end tag of `<devices>`.
    pub(super) devices_end: Option<usize>,
    /// Whether the metadata has the mark of a share ([`SHARE_NAMESPACE`]).
    pub(super) share: bool,
    /// Place of the end tag of the first `<metadata>`, or of the whole element if it is empty.
    pub(super) metadata: Option<Range<usize>>,
    /// Place of the end tag of `<domain>`.
    pub(super) domain_end: Option<usize>,
}

/// The vsock device of a domain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Vsock {
    /// The CID; absent while libvirt has not chosen a CID.
    pub(super) cid: Option<String>,
}

/// Reads a domain.
///
/// # Errors
/// A sentence, if the text is not well-formed, has a DTD, or is not a domain.
pub(super) fn domain(text: &str) -> Result<Domain, String> {
    let mut reader = Reader::from_str(text);
    let mut walk = Walk::default();
    loop {
        let start = position(&reader);
        let event = reader
            .read_event()
            .map_err(|error| format!("The XML is not well-formed: {error}."))?;
        let end = position(&reader);
        match event {
            Event::Start(tag) => walk.open(&tag, start)?,
            Event::Empty(tag) => {
                walk.open(&tag, start)?;
                walk.close(start, end);
            }
            Event::End(_) => walk.close(start, end),
            Event::Text(text) => walk.text(&text.xml_content(XmlVersion::Implicit1_0)),
            Event::CData(text) => walk.text(&text.xml_content(XmlVersion::Implicit1_0)),
            Event::GeneralRef(entity) => walk.text(&resolve(&entity)?),
            Event::DocType(_) => return Err("The XML has a DTD, which is refused.".into()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    walk.finish()
}

fn position(reader: &Reader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX)
}

fn resolve(entity: &quick_xml::events::BytesRef<'_>) -> Result<String, String> {
    if let Ok(Some(character)) = entity.resolve_char_ref() {
        return Ok(character.into());
    }
    quick_xml::escape::resolve_predefined_entity(entity)
        .map(Into::into)
        .ok_or_else(|| format!("The XML has the entity &{};, which is refused.", &**entity))
}

#[derive(Default)]
struct Walk {
    path: Vec<String>,
    domain: Domain,
    /// The mediated device that is being read.
    mdev: Option<(usize, String)>,
    vsock_start: usize,
    seen_domain: bool,
}

impl Walk {
    fn at(&self, path: &[&str]) -> bool {
        self.path
            .iter()
            .map(String::as_str)
            .eq(path.iter().copied())
    }

    fn open(&mut self, tag: &BytesStart<'_>, start: usize) -> Result<(), String> {
        if self.path.len() == MAX_DEPTH {
            return Err(format!("The XML is deeper than {MAX_DEPTH} elements."));
        }
        self.path.push(tag.name().into_inner().into());
        let attributes = attributes(tag)?;
        let value = |name: &str| attributes.get(name).cloned().unwrap_or_default();
        if self.at(&["domain"]) {
            if std::mem::replace(&mut self.seen_domain, true) {
                return Err("The XML has several domains.".into());
            }
        } else if self.path.len() == 3 && self.path[..2] == ["domain", "metadata"] {
            // A namespace is declared by `xmlns:PREFIX`, or by `xmlns` for names without a prefix.
            let (prefix, name) = match self.path[2].split_once(':') {
                Some((prefix, name)) => (format!("xmlns:{prefix}"), name),
                None => ("xmlns".into(), self.path[2].as_str()),
            };
            self.domain.share |= name == "share" && value(&prefix) == SHARE_NAMESPACE;
        } else if self.at(&["domain", "devices", "vsock"]) {
            self.domain.vsock.get_or_insert_default();
            self.vsock_start = start;
        } else if self.at(&["domain", "devices", "vsock", "cid"]) {
            self.domain.vsock = Some(Vsock {
                cid: attributes.get("address").cloned(),
            });
        } else if self.at(&["domain", "devices", "hostdev"]) && value("type") == "mdev" {
            self.mdev = Some((start, String::new()));
        } else if self.at(&["domain", "devices", "hostdev", "source", "address"])
            && let Some((_, uuid)) = &mut self.mdev
        {
            *uuid = value("uuid");
        }
        Ok(())
    }

    fn close(&mut self, start: usize, end: usize) {
        if self.at(&["domain", "devices", "hostdev"]) {
            if let Some((start, uuid)) = self.mdev.take() {
                self.domain.mdevs.push((start..end, uuid));
            }
        } else if self.at(&["domain", "devices", "vsock"]) {
            self.domain.vsocks.push(self.vsock_start..end);
        } else if self.at(&["domain", "devices"]) && end > start {
            // `<devices/>` has no end tag.
            self.domain.devices_end = Some(start);
        } else if self.at(&["domain", "metadata"]) {
            self.domain.metadata.get_or_insert(start..end);
        } else if self.at(&["domain"]) {
            self.domain.domain_end = Some(start);
        }
        self.path.pop();
    }

    fn text(&mut self, text: &str) {
        if self.at(&["domain", "name"]) {
            self.domain.name.push_str(text);
        } else if self.at(&["domain", "uuid"]) {
            self.domain.uuid.push_str(text.trim());
        }
    }

    fn finish(self) -> Result<Domain, String> {
        if !self.path.is_empty() {
            return Err("The XML ends within an element.".into());
        }
        if !self.seen_domain {
            return Err("The XML is not a libvirt domain.".into());
        }
        Ok(self.domain)
    }
}

/// Returns the attributes of an element in linear time. The parser's own check for repeated names
/// is quadratic.
fn attributes(tag: &BytesStart<'_>) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    for attribute in tag.attributes().with_checks(false) {
        let wrong = |error: String| format!("The XML has a wrong attribute: {error}.");
        let attribute = attribute.map_err(|error| wrong(error.to_string()))?;
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|error| wrong(error.to_string()))?;
        if found.len() == MAX_ATTRIBUTES {
            return Err(format!(
                "The XML has an element with more than {MAX_ATTRIBUTES} attributes."
            ));
        }
        let name = attribute.key.into_inner();
        if found.insert(name.to_owned(), value.into_owned()).is_some() {
            return Err(wrong(format!("the attribute {name} is given twice")));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        domain(text).unwrap_err()
    }

    #[test]
    fn a_domain_is_read() {
        let text = "<?xml version='1.0'?>\n<!-- x --><domain type='kvm'><name>a&amp;b &#x263a;</name>\
            <uuid>\n 4dea22b3-1d52-d8f3-2516-782e98ab3fa0 </uuid><metadata><name>no</name></metadata>\
            <devices><vsock model='virtio'><cid auto='yes' address='5'/></vsock></devices></domain>";
        let read = domain(text).unwrap();
        assert_eq!(read.name, "a&b \u{263a}");
        assert_eq!(read.uuid, "4dea22b3-1d52-d8f3-2516-782e98ab3fa0");
        assert_eq!(read.vsock.unwrap().cid.unwrap(), "5");
    }

    #[test]
    fn places_are_those_of_whole_elements() {
        let text = "<domain><devices><hostdev type='mdev'><source><address uuid='u1'/></source>\
            </hostdev><vsock/><hostdev type='pci'><source><address uuid='u2'/></source></hostdev>\
            </devices></domain>";
        let read = domain(text).unwrap();
        let [(place, uuid)] = &read.mdevs[..] else {
            panic!("{read:?}")
        };
        assert_eq!(uuid, "u1");
        assert!(text[place.clone()].starts_with("<hostdev type='mdev'>"));
        assert!(text[place.clone()].ends_with("</hostdev>"));
        assert_eq!(&text[read.vsocks[0].clone()], "<vsock/>");
        assert!(text[read.devices_end.unwrap()..].starts_with("</devices>"));
    }

    #[test]
    fn hostile_xml_is_refused_with_a_sentence() {
        let bomb = "<!DOCTYPE d [<!ENTITY a 'b'>]><domain><name>&a;</name></domain>";
        assert!(refused(bomb).contains("DTD"));
        assert!(refused("<domain><name>&a;</name></domain>").contains("&a;"));
        assert!(refused("<domain a='&a;'/>").contains("attribute"));
        assert!(refused("<domain a='1' a='2'/>").contains("attribute a is given twice"));
        assert!(refused("<domain/><domain/>").contains("several domains"));
        assert!(refused("<domain><name>").contains("ends within"));
        assert!(refused("<domain></name>").contains("not well-formed"));
        assert!(refused("<network/>").contains("not a libvirt domain"));
        assert!(refused("").contains("not a libvirt domain"));
        assert!(refused(&"<a>".repeat(1_000)).contains("deeper than 64"));
        let wide: String = (0..20_000).map(|i| format!(" a{i}=''")).collect();
        assert!(refused(&format!("<domain{wide}/>")).contains("more than 64 attributes"));
    }
}
