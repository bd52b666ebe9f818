// Package audit counts Ebb's writes by the API server's audit log.
//
// Owns: nothing. Reads: the log, from where it ended at Open. Writes: nothing. Never: asserts a
// figure.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Log reads the writes of Ebb's service accounts from the API server's audit log. The cluster's
// audit policy must log each such write once; the policy of `make up` does.
type Log struct{ file *os.File }

// Open opens the log that EBB_AUDIT_LOG names, at its end. Without it, it returns nil, which counts
// nothing.
func Open() (*Log, error) {
	path := os.Getenv("EBB_AUDIT_LOG")
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	_, err = file.Seek(0, io.SeekEnd)
	return &Log{file}, err
}

// Writes counts the writes in a namespace that were logged since the last call, by account, verb,
// resource and status code.
func (a *Log) Writes(namespace string) (map[string]int, error) {
	counts := map[string]int{}
	if a == nil {
		return counts, nil
	}
	lines := bufio.NewReader(a.file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			_, err := a.file.Seek(-int64(len(line)), io.SeekCurrent) // the rest of a partial line is read by the next call
			return counts, err
		} else if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		var event struct {
			Verb string `json:"verb"`
			User struct {
				Username string `json:"username"`
			} `json:"user"`
			Object struct {
				Resource, Namespace, Subresource string
			} `json:"objectRef"`
			Answer struct {
				Code int `json:"code"`
			} `json:"responseStatus"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("the audit log has the line %.200q: %w", line, err)
		}
		if event.Object.Namespace != namespace {
			continue
		}
		resource := event.Object.Resource
		if event.Object.Subresource != "" {
			resource += "/" + event.Object.Subresource
		}
		account := event.User.Username[strings.LastIndex(event.User.Username, ":")+1:]
		counts[fmt.Sprintf("%s %s %s %d", account, event.Verb, resource, event.Answer.Code)]++
	}
}
