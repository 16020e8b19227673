// CloudStack's transformer of libvirt's XML: replaces a share of a GPU by a vsock device
// (docs/cloudstack.md). The agent loads the class and calls transform(logger, xml) before a VM
// starts. On a failure the XML stays as it is; libvirt then refuses the VM, because the share is not
// a device.
class VgpuTransformer {
    static final String MARK = '76677075-'
    static final long DEADLINE_MS = 10_000

    String transform(Object logger, String xml) {
        if (xml == null || !xml.contains(MARK)) {
            return xml
        }
        try {
            def process = ['vgpu-admin', 'cloudstack', 'transform'].execute()
            def out = new StringBuffer()
            def err = new StringBuffer()
            def readers = [process.consumeProcessOutputStream(out), process.consumeProcessErrorStream(err)]
            process.outputStream.withStream { it.write(xml.getBytes('UTF-8')) }
            process.waitForOrKill(DEADLINE_MS)
            readers.each { it.join(DEADLINE_MS) }
            if (process.exitValue() == 0 && out.length() > 0) {
                return out.toString()
            }
            logger.error('vgpu: the share of the VM was not replaced: ' + err.toString().trim())
        } catch (IOException e) {
            logger.error('vgpu: the share of the VM was not replaced: ' + e.message)
        }
        return xml
    }
}

new VgpuTransformer()
