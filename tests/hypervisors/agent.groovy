// Calls the transformer as CloudStack's agent does: agent.groovy DIRECTORY FILE…, with the results
// in FILE.out.
def engine = new groovy.util.GroovyScriptEngine(args[0])
def logger = new Expando(error: { System.err.println(it) })
args.drop(1).each { file ->
    def transformer = engine.run('libvirt-vm-xml-transformer.groovy', new Binding())
    def xml = new File(file).getText('UTF-8')
    new File(file + '.out').setText(transformer.invokeMethod('transform', [logger, xml] as Object[]), 'UTF-8')
}
