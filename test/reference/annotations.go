package reference

import "ebb.dev/ebb/api/names"

// annotations lists the table of annotations.
func annotations() string {
	b := page("Annotations", "Every annotation that Ebb reads or writes. *Template* is `spec.template.metadata.annotations` of a Service or\n"+
		"Configuration; a Revision has them from there. A value that is not legal is refused, and so are annotations about\n"+
		"autoscaling, cold starts and networking where they have no effect. [Settings](../settings.md) has the keys that defaults\n"+
		"name. Examples are in [Autoscaling](../autoscaling.md), [Standby](../standby.md), [Cold starts](../cold.md),\n"+
		"[Asynchronous calls](../async.md) and [TLS](../tls.md).")
	var read, written [][]string
	for _, a := range names.Annotations {
		key := code(a.Key)
		for _, older := range a.Older {
			key += " (older: " + code(older) + ")"
		}
		if a.Values.Text == "" {
			written = append(written, []string{key, a.Effect})
			continue
		}
		read = append(read, []string{key, a.On, a.Values.Text, a.Default, a.Effect})
	}
	table(b, []string{"Annotation", "On", "Values", "Default", "Effect"}, read)
	b.WriteString("\n## Written by Ebb\n\nDo not set these.\n")
	table(b, []string{"Annotation", "Meaning"}, written)
	return b.String()
}
