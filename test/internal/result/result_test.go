package result

import (
	"bytes"
	"math"
	"testing"
)

func TestMedianAndQuantile(t *testing.T) {
	for _, test := range []struct {
		values              []float64
		median, p99, lowest float64
	}{
		{[]float64{3}, 3, 3, 3},
		{[]float64{4, 1}, 2.5, 4, 1},
		{[]float64{9, 1, 5}, 5, 9, 1},
	} {
		if got := Median(test.values); got != test.median {
			t.Errorf("median of %v is %v, want %v", test.values, got, test.median)
		}
		if got := Quantile(test.values, 0.99); got != test.p99 {
			t.Errorf("p99 of %v is %v, want %v", test.values, got, test.p99)
		}
		if got := Quantile(test.values, 0); got != test.lowest {
			t.Errorf("lowest of %v is %v, want %v", test.values, got, test.lowest)
		}
	}
	if !math.IsNaN(Median(nil)) || !math.IsNaN(Quantile(nil, 0.5)) {
		t.Error("the median of nothing is a number")
	}
}

func TestLinesAreJSONWithTheBenchNamed(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Bench: "x", Out: &out}
	if err := p.Line(Fields{"a_ms": 1.23456, "none": math.NaN()}); err != nil {
		t.Fatal(err)
	}
	if err := p.Summary(Fields{"n": 2}); err != nil {
		t.Fatal(err)
	}
	want := `{"a_ms":1.235,"bench":"x","none":null}` + "\n" + `{"bench":"x","n":2,"summary":true}` + "\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
