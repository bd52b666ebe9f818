package names

import (
	"fmt"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/wire"
)

// RecordHeader on a request asks for a record of it, unless the Service has RecordsNone.
const RecordHeader = wire.HeaderRecord

// Values of RecordsAnnotation.
const (
	RecordsNone         = wire.RecordsNone
	RecordsAsynchronous = wire.RecordsAsynchronous
	RecordsAll          = wire.RecordsAll
)

// Records returns the value of RecordsAnnotation. An invalid value reads as the default.
func Records(annotations map[string]string) (string, *apis.FieldError) {
	switch text, ok := annotations[RecordsAnnotation]; {
	case !ok:
	case text == RecordsNone || text == RecordsAsynchronous || text == RecordsAll:
		return text, nil
	default:
		return RecordsAsynchronous, apis.ErrInvalidValue(text, RecordsAnnotation,
			fmt.Sprintf("must be %s, %s or %s", RecordsNone, RecordsAsynchronous, RecordsAll))
	}
	return RecordsAsynchronous, nil
}
