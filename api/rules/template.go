package rules

import (
	"bytes"
	"errors"
	"text/template"
)

// Template is a Go template that makes names. The zero Template is not usable.
type Template struct {
	text     string
	compiled *template.Template
}

// NewTemplate compiles a template. A missing map entry is empty.
func NewTemplate(text string) (Template, error) {
	c, err := template.New("name").Option("missingkey=zero").Parse(text)
	return Template{text: text, compiled: c}, err
}

// String is the template's text.
func (t Template) String() string { return t.text }

// Equal compares by text.
func (t Template) Equal(o Template) bool { return t.text == o.text }

// Expand applies the template. The result is bounded by the longest DNS name.
func (t Template) Expand(values any) (string, error) {
	if t.compiled == nil {
		return "", errors.New("the template is empty")
	}
	var out boundedBuffer
	if err := t.compiled.Execute(&out, values); err != nil {
		return "", err
	}
	return out.String(), nil
}

// maxName bounds what a template may write: one more than the longest DNS name.
const maxName = 254

type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxName {
		return 0, errors.New("the result is longer than a DNS name may be")
	}
	return b.Buffer.Write(p)
}
