package v1alpha1

import (
	"encoding/json"
	"math"
	"testing"
)

func TestWhatIsNotKnownIsNull(t *testing.T) {
	text, err := json.Marshal(Values{0, 12345.678, 1.23456, 0.00012345, math.NaN(), math.Inf(1), -7})
	if err != nil || string(text) != "[0,12346,1.23,0.000123,null,null,-7]" {
		t.Fatalf("%s %v", text, err)
	}
	var back Values
	if err := json.Unmarshal(text, &back); err != nil || len(back) != 7 || back[1] != 12346 || !math.IsNaN(back[4]) {
		t.Errorf("%v %v", back, err)
	}
	if err := json.Unmarshal([]byte(`["x"]`), &back); err == nil {
		t.Error("a text is no value")
	}
	if err := json.Unmarshal([]byte(`null`), &back); err != nil || back != nil {
		t.Errorf("%v %v", back, err)
	}
}
