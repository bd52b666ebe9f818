package main

import (
	"strings"
	"testing"
)

func TestWordsBecomeLarge(t *testing.T) {
	var out strings.Builder
	if err := upper(&out, strings.NewReader("one\ntwo")); err != nil || out.String() != "ONE\nTWO" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
