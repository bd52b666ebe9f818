package reference

import (
	"fmt"
	"strings"

	"ebb.dev/ebb/api/names"
)

// annotations lists the table of annotations.
func annotations() string {
	b := page("Annotations", "Every annotation that Ebb reads or writes. *Template* is `spec.template.metadata.annotations` of a Service or\n"+
		"Configuration; a Revision has them from there. A value that is not legal is refused, and so are annotations about\n"+
		"autoscaling, cold starts and networking where they have no effect. [Settings](../settings.md) has the keys that defaults\n"+
		"name. Examples are in [Autoscaling](../autoscaling.md), [Standby](../standby.md), [Cold starts](../cold.md),\n"+
		"[Asynchronous calls](../async.md) and [TLS](../tls.md). An older spelling counts if the key itself is absent.")
	var places []string
	rows := map[string][][]string{}
	for _, a := range names.Annotations {
		if rows[a.On] == nil {
			places = append(places, a.On)
		}
		key := code(a.Key)
		group, _, _ := strings.Cut(a.Key, "/")
		for _, older := range a.Older {
			key += ", older: " + code(strings.TrimPrefix(older, group+"/"))
		}
		row := []string{key, a.Values.Text, a.Default, a.Effect}
		if a.Values.Text == "" {
			row = []string{key, a.Effect}
		}
		rows[a.On] = append(rows[a.On], row)
	}
	for _, place := range places {
		fmt.Fprintf(b, "\n## %s\n", strings.ToUpper(place[:1])+place[1:])
		head := []string{"Annotation", "Values", "Default", "Effect"}
		if len(rows[place][0]) == 2 {
			head = []string{"Annotation", "Meaning"}
		}
		table(b, head, rows[place])
	}
	return b.String()
}
