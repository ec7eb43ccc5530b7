#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace outrider {
namespace {

class LogTest : public testing::Test {
 protected:
  ~LogTest() override { set_log(LogLevel::info, LogFormat::text); }
  template <class Write>
  static std::string captured(Write write) {
    testing::internal::CaptureStderr();
    write();
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, WritesOneLinePerEvent) {
  EXPECT_EQ(captured([] { log(LogLevel::warning, "{} of {} rows", 3, 4); }), "warning: 3 of 4 rows\n");
}

TEST_F(LogTest, DropsWhatIsBelowTheLevel) {
  set_log(LogLevel::warning, LogFormat::text);
  EXPECT_FALSE(log_enabled(LogLevel::info));
  EXPECT_EQ(captured([] {
              log(LogLevel::info, "no");
              log(LogLevel::error, "yes");
            }),
            "error: yes\n");
  set_log(LogLevel::off, LogFormat::text);
  EXPECT_EQ(captured([] { log(LogLevel::error, "no"); }), "");
}

TEST_F(LogTest, EscapesJsonStrings) {
  set_log(LogLevel::debug, LogFormat::json);
  EXPECT_EQ(captured([] { log_line(LogLevel::debug, "a \"b\" \\ \n\x01"); }),
            "{\"level\":\"debug\",\"message\":\"a \\\"b\\\" \\\\ \\u000a\\u0001\"}\n");
}

TEST_F(LogTest, KeepsUtf8AndEscapesEveryByteThatIsNone) {
  set_log(LogLevel::info, LogFormat::json);
  const auto message = [&](std::string_view text) {
    const std::string line = captured([&] { log_line(LogLevel::info, text); });
    const std::string head = "{\"level\":\"info\",\"message\":\"";
    return line.substr(head.size(), line.size() - head.size() - 3);
  };
  const std::string good = "\u00e4\u20ac\U0001F600\u07ff\ud7ff\uffff\U0010ffff";
  EXPECT_EQ(message(good), good);
  EXPECT_EQ(message("\xff"), "\\u00ff");
  EXPECT_EQ(message("a\xc3"), "a\\u00c3");                                 // cut short
  EXPECT_EQ(message("\xc0\xaf"), "\\u00c0\\u00af");                        // overlong
  EXPECT_EQ(message("\xe0\x9f\xbf"), "\\u00e0\\u009f\\u00bf");             // overlong
  EXPECT_EQ(message("\xed\xa0\x80"), "\\u00ed\\u00a0\\u0080");             // surrogate
  EXPECT_EQ(message("\xf4\x90\x80\x80"), "\\u00f4\\u0090\\u0080\\u0080");  // above U+10FFFF
  EXPECT_EQ(message("\xe2\x82z"), "\\u00e2\\u0082z");
}

TEST_F(LogTest, LinesOfSeveralThreadsStayWhole) {
  const std::string text = captured([] {
    std::vector<std::jthread> writers;
    for (int writer = 0; writer < 4; ++writer)
      writers.emplace_back([] {
        for (int i = 0; i < 100; ++i) log(LogLevel::info, "{}", std::string(50, 'x'));
      });
  });
  std::string want;
  for (int i = 0; i < 400; ++i) want += "info: " + std::string(50, 'x') + "\n";
  EXPECT_EQ(text, want);
}

}  // namespace
}  // namespace outrider
