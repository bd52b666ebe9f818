// Command words is a program that knows nothing of HTTP: it writes its standard input to its
// standard output in upper case, line by line, and ends. The shim makes it a service.
//
// Arguments: -exit N ends with that status, after a complaint; -env NAME writes the variable
// instead; -http serves the same at $PORT, for the benchmark to compare with.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	status := flag.Int("exit", 0, "end with this `status`")
	variable := flag.String("env", "", "write the variable of this `name`")
	server := flag.Bool("http", false, "serve the same at $PORT")
	flag.Parse()
	err := run(*status, *variable, *server)
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(max(*status, 1))
	}
}

func run(status int, variable string, server bool) error {
	switch {
	case server:
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = upper(w, r.Body) })
		return (&http.Server{Addr: ":" + os.Getenv("PORT"), Handler: handler, ReadHeaderTimeout: time.Minute}).ListenAndServe()
	case variable != "":
		_, err := fmt.Println(os.Getenv(variable))
		return err
	}
	if err := upper(os.Stdout, os.Stdin); err != nil {
		return err
	}
	if status != 0 {
		return errors.New(strings.Repeat("it was told to fail ", 3))
	}
	return nil
}

// upper copies lines in upper case, each as soon as it is there.
func upper(w io.Writer, r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if _, err := w.Write(bytes.ToUpper(line)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
