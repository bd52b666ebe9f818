package names

import "testing"

func TestOnlyKnownRecordsPass(t *testing.T) {
	for text, ok := range map[string]bool{RecordsNone: true, RecordsAsynchronous: true, RecordsAll: true, "": false, "some": false} {
		got, err := read(map[string]string{RecordsAnnotation: text}, (*reader).records)
		if (err == nil) != ok || ok && got != text || !ok && got != RecordsAsynchronous {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	if got, err := read(nil, (*reader).records); got != RecordsAsynchronous || err != nil {
		t.Errorf("without the annotation: %s, %v", got, err)
	}
}
