package cold

import "strings"

// Browses reports whether a request is one of a browser for something to look at: it reads, and of
// the media types that it accepts it wants text/html most. One that accepts anything, as programs
// do, names none.
func Browses(method, accept string) bool {
	return (method == "GET" || method == "HEAD") && prefersHTML(accept)
}

// prefersHTML reads a field Accept (RFC 9110, section 12.5.1): text/html stands in it with the
// highest weight, and before others with the same. It allocates nothing, because it is asked before
// the request has cost anybody anything.
func prefersHTML(accept string) bool {
	const html = "text/html"
	best, htmlIsBest := 0, false
	for len(accept) > 0 {
		var one string
		one, accept = cutList(accept)
		media, parameters, _ := strings.Cut(one, ";")
		media = strings.Trim(media, " \t")
		if q := weight(parameters); media != "" && q > best {
			best, htmlIsBest = q, strings.EqualFold(media, html)
		}
	}
	return htmlIsBest
}

// cutList cuts a list at its first comma that stands in no quoted string.
func cutList(list string) (first, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return list[:i], list[i+1:]
		}
	}
	return list, ""
}

// weight is the parameter q in thousandths, 1000 if there is none, 0 if it is none (RFC 9110,
// section 12.4.2).
func weight(parameters string) int {
	for len(parameters) > 0 {
		var one string
		one, parameters, _ = strings.Cut(parameters, ";")
		name, value, _ := strings.Cut(strings.Trim(one, " \t"), "=")
		if name != "q" && name != "Q" {
			continue
		}
		if len(value) == 0 || len(value) > 5 || len(value) > 1 && value[1] != '.' {
			return 0
		}
		q, unit := 0, 1000
		for i := range len(value) {
			if i == 1 {
				continue
			}
			digit := int(value[i]) - '0'
			if digit < 0 || digit > 9 {
				return 0
			}
			q, unit = q+digit*unit, unit/10
		}
		if q > 1000 {
			return 0
		}
		return q
	}
	return 1000
}
