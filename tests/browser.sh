# Chromium and its driver, for the tests that open a page; where they cannot be installed, those tests are skipped.
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing chromium and chromium-driver for the tests of the page"
  if apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null; then
    exit 0
  fi
fi
echo "chromium and chromedriver are not here and could not be installed: the page will NOT be tried in a browser"
