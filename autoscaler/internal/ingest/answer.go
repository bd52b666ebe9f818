package ingest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"ebb.dev/ebb/wire"
)

var errStatus = errors.New("the status is not 200")

// answerOf finds the body in what has arrived of an answer, and whether it is complete. The plain
// answer of queue-proxy is read in place: a large cluster sends 12 000 a second. net/http reads any
// other.
func answerOf(data []byte) (body []byte, whole bool, err error) {
	end := bytes.Index(data, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, false, nil
	}
	head, rest := data[:end], data[end+4:]
	line, head, _ := bytes.Cut(head, []byte("\r\n"))
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		return nil, false, fmt.Errorf("%w: %.60q", errStatus, line)
	}
	length := -1
	for len(head) > 0 {
		line, head, _ = bytes.Cut(head, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			n, bad := strconv.Atoi(string(bytes.TrimSpace(value)))
			if bad != nil || n < 0 || length >= 0 {
				return nil, false, fmt.Errorf("the answer has the invalid length %.20q", value)
			}
			length = n
		case bytes.EqualFold(name, []byte("Transfer-Encoding")), bytes.EqualFold(name, []byte("Connection")):
			return unusual(data)
		}
	}
	switch {
	case length > wire.MaxAnswerBytes:
		return nil, false, fmt.Errorf("the answer is longer than %d bytes", wire.MaxAnswerBytes)
	case length < 0:
		return nil, false, errors.New("the answer has no length")
	case len(rest) > length:
		return nil, false, errors.New("the answer is longer than it says")
	}
	return rest, len(rest) == length, nil
}

// unusual reads a chunked answer, or one that ends with the connection.
func unusual(data []byte) ([]byte, bool, error) {
	response, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(data), len(data)), nil)
	if err != nil {
		return nil, false, fmt.Errorf("read answer: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, wire.MaxAnswerBytes+1))
	switch {
	case len(body) > wire.MaxAnswerBytes:
		return nil, false, fmt.Errorf("the answer is longer than %d bytes", wire.MaxAnswerBytes)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read answer: %w", err)
	}
	return body, true, nil
}
